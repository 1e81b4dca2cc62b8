"""Vital product data of a PCI card: the serial number on its label."""

from __future__ import annotations

READ_ONLY_SECTION = 0x90
END = 0x78


def serial_number(data: bytes) -> str | None:
    """Return the SN field, None where the data has none or is cut before it.

    Layout: PCI local bus specification 3.0, appendix I (large resources: tag, 16-bit length, content).
    """
    position = 0
    while position + 3 <= len(data) and data[position] != END:
        tag = data[position]
        if not tag & 0x80:
            position += 1 + (tag & 0x07)
            continue
        length = int.from_bytes(data[position + 1 : position + 3], "little")
        content = data[position + 3 : position + 3 + length]
        if tag == READ_ONLY_SECTION:
            return _field(content, b"SN")
        position += 3 + length
    return None


def _field(content: bytes, keyword: bytes) -> str | None:
    position = 0
    while position + 3 <= len(content):
        length = content[position + 2]
        value = content[position + 3 : position + 3 + length]
        if content[position : position + 2] == keyword and len(value) == length:
            text = value.decode("ascii", "replace").strip("\0 ")
            return text if text.isprintable() and text else None
        position += 3 + length
    return None

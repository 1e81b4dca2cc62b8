"""The SSH host key of one rebuilt node: what the known_hosts file says, what is presented, and the file afterwards.

Only lines of this one host are ever taken out; wildcards, certificate authorities and all other hosts stay as they are.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import RackweaveError

KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
_OPTION = re.compile(r"UserKnownHostsFile[=\s]+(\"[^\"]+\"|'[^']+'|\S+)")


class HostKeyError(RackweaveError):
    """A host key that is not known, not presented, or not the expected one."""


@dataclass(frozen=True, order=True)
class HostKey:
    """One public host key: type and base64 of the key, as known_hosts files hold them."""

    type: str
    blob: str

    @property
    def fingerprint(self) -> str:
        """SHA-256 fingerprint as ``ssh-keygen -l`` prints it."""
        digest = hashlib.sha256(base64.b64decode(self.blob)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    @property
    def words(self) -> str:
        """Fingerprint and type, for people."""
        return f"{self.fingerprint} ({self.type})"


@dataclass(frozen=True)
class Known:
    """What a known_hosts file says of a host."""

    keys: tuple[HostKey, ...]
    certified: bool


@dataclass(frozen=True)
class Decision:
    """Whether lines of the host are replaced by `keys`, and why, in words."""

    replace: bool
    keys: tuple[HostKey, ...]
    words: str


def names_of(address: str, port: int, others: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names under which known_hosts files hold a host: of another port than 22 with brackets."""
    names = list(dict.fromkeys([address, *others]))
    return tuple(f"[{name}]:{port}" if port != 22 else name for name in names)


def known_hosts_file(ssh_arguments: str, default: str) -> str:
    """Return the file that ssh uses with these arguments: the first ``UserKnownHostsFile``, else the default."""
    match = _OPTION.search(ssh_arguments)
    return match.group(1).strip("\"'") if match else default


def parse_keys(text: str) -> tuple[HostKey, ...]:
    """Read what ``ssh-keyscan`` printed, or a line of a known_hosts or ``.pub`` file; comments are left out."""
    keys = set()
    for line in text.splitlines():
        words = line.split()
        place = next((index for index, word in enumerate(words[:2]) if word in KEY_TYPES), None)
        if place is not None and len(words) > place + 1 and _is_base64(words[place + 1]):
            keys.add(HostKey(words[place], words[place + 1]))
    return tuple(sorted(keys, key=lambda key: (KEY_TYPES.index(key.type), key.blob)))


def known_keys(text: str, names: Sequence[str]) -> Known:
    """Return the keys that a known_hosts file has of a host, hashed names included."""
    keys: list[HostKey] = []
    certified = False
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] == "@cert-authority" and len(words) > 1:
            certified = certified or any(_pattern_matches(words[1], name) for name in names)
        elif not words[0].startswith("@") and _names_host(words[0], names):
            keys += parse_keys(" ".join(words[:3]))
    return Known(tuple(keys), certified)


def decide(
    host: str, known: Known, presented: Sequence[HostKey], expected: str = "", accept_ok: bool = False
) -> Decision:
    """Decide what becomes of the host's lines.

    Args:
        host: its name, for messages.
        known: of :func:`known_keys`.
        presented: keys that the host presents now.
        expected: a fingerprint (``SHA256:…``) or a public key that the operator knows from elsewhere; consent for it.
        accept_ok: consent to whatever the host presents.

    Raises:
        HostKeyError: if nothing is presented, or it is new and there is no consent, or it is not what was expected.
    """
    if known.certified:
        return Decision(False, known.keys, f"{host}: a certificate authority vouches for its host key")
    if not presented:
        raise HostKeyError(
            f"{host} presents no SSH host key: it is off, still installs, or its SSH port is closed; nothing was "
            "changed. Bring it up with SSH and run again, or, if only a jump host reaches it, give its public key in "
            "rebuild_host_keys"
        )
    if set(known.keys) & set(presented):
        return Decision(False, known.keys, f"{host}: host key unchanged, {presented[0].words}")
    shown = ", ".join(key.words for key in presented)
    before = f"was {', '.join(key.words for key in known.keys)}" if known.keys else "none was known"
    if expected:
        agreed = tuple(key for key in presented if expected.strip() == key.fingerprint or key in parse_keys(expected))
        if not agreed:
            raise HostKeyError(
                f"{host} presents {shown}, but rebuild_host_keys expects {_expected_words(expected)}: this may be "
                "another machine at its address; nothing was changed, look at it from its console"
            )
        return Decision(True, agreed, f"{host}: host key replaced by the expected one, {agreed[0].words}; {before}")
    if not accept_ok:
        raise HostKeyError(
            f"{host} presents another SSH host key: {shown}; {before}. Nothing was changed. Compare it on the node's "
            f"console (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then run again with "
            f'-e \'{{"rebuild_host_keys": {{"{host}": "{presented[0].fingerprint}"}}}}\', or accept it unseen with '
            f"-e rebuild_host_key_ok=true"
        )
    return Decision(True, tuple(presented), f"{host}: host key accepted by consent, {shown}; {before}")


def replaced(text: str, names: Sequence[str], keys: Sequence[HostKey]) -> str:
    """Return a known_hosts file in which these keys, and no others, stand for the host."""
    kept = []
    for line in text.splitlines():
        words = line.split()
        plain = bool(words) and not words[0].startswith(("#", "@"))
        if not plain or not _names_host(words[0], names):
            kept.append(line)
            continue
        # A line may name other hosts too: those keep their key.
        others = [pattern for pattern in words[0].split(",") if not _names_host(pattern, names)]
        if others:
            kept.append(" ".join([",".join(others), *words[1:]]))
    kept += [f"{','.join(names)} {key.type} {key.blob}" for key in keys]
    return "\n".join(kept) + "\n"


def _names_host(patterns: str, names: Sequence[str]) -> bool:
    """Whether a pattern list names the host itself; wildcards do not, since they stand for others too."""
    for pattern in patterns.split(","):
        if pattern.startswith("|1|"):
            if any(_hash_matches(pattern, name) for name in names):
                return True
        elif pattern in names:
            return True
    return False


def _hash_matches(pattern: str, name: str) -> bool:
    parts = pattern.split("|")
    if len(parts) != 4:
        return False
    try:
        salt, digest = base64.b64decode(parts[2]), base64.b64decode(parts[3])
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)


def _pattern_matches(patterns: str, name: str) -> bool:
    """Match as sshd(8) says of known_hosts: ``*`` and ``?``, a ``!`` in front excludes."""
    matched = False
    for pattern in patterns.split(","):
        negated = pattern.startswith("!")
        expression = re.escape(pattern.lstrip("!")).replace(r"\*", ".*").replace(r"\?", ".")
        if re.fullmatch(expression, name):
            if negated:
                return False
            matched = True
    return matched


def _expected_words(expected: str) -> str:
    keys = parse_keys(expected)
    return keys[0].words if keys else expected.strip()


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return False

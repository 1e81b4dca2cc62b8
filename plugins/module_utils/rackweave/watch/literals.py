"""Which texts must stand in a line before a pattern can match it: the fast filter, read from the pattern itself.

A filter that is kept by hand beside a pattern forgets alternatives; this one cannot. Texts come back in lower case and
without digits, as the scanner compares them with lines in that form.
"""

from __future__ import annotations

from dataclasses import dataclass

# Words that healthy lines are full of: a filter made of them alone lets too much through.
_COMMON = frozenset(
    ("error", "failed", "rank", "node", "info", "warn", "checkpoint", "step", "iteration", "loss", "nccl", "device")
)
_CLASSES = "dDwWsSbBAZ"
_MIN = 3


@dataclass
class _Reader:
    """A position in a pattern; knows as much of the syntax as the tables use."""

    pattern: str
    at: int = 0

    def peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def take(self) -> str:
        self.at += 1
        return self.pattern[self.at - 1]


def required(pattern: str) -> frozenset[str]:
    """Texts of which every match contains at least one.

    Raises:
        ValueError: if some alternative of the pattern has no text of three letters.
    """
    found = {"".join(c for c in text if not c.isdigit()) for text in _alternatives(_Reader(pattern))}
    if not found:
        raise ValueError(f"no text is common to the matches of {pattern!r}; give each alternative a word")
    return frozenset(found)


def _alternatives(reader: _Reader) -> set[str]:
    """Read up to the end of a group: the texts of all alternatives together, empty if one has none."""
    together: set[str] = set()
    complete = True
    while True:
        best = _sequence(reader)
        complete = complete and bool(best)
        together |= best
        if reader.peek() != "|":
            return together if complete else set()
        reader.take()


def _sequence(reader: _Reader) -> set[str]:
    """The best texts of one alternative: of its runs of plain characters and of its groups."""
    choices: list[set[str]] = []
    run = ""
    while reader.peek() not in ("", "|", ")"):
        plain, inner = _item(reader)
        optional = _is_optional(reader)
        repeated = _skip_quantifier(reader)
        if plain and not optional:
            run += plain
            if not repeated:
                continue
        choices.append({run})
        run = ""
        if inner and not optional:
            choices.append(inner)
    choices.append({run})
    return max(choices, key=_worth) if any(_worth(choice) > 0 for choice in choices) else set()


def _worth(texts: set[str]) -> float:
    """How well a set of texts filters: its weakest member counts."""
    return min((_strength(text) for text in texts), default=0.0) - 0.01 * len(texts)


def _strength(text: str) -> float:
    length = len("".join(c for c in text if not c.isspace() and not c.isdigit()))
    if length < _MIN:
        return 0.0
    rare = [word for word in text.split() if word.strip(":.,()[]'\"/=") not in _COMMON]
    return min(length, 14) if any(len(word) >= _MIN for word in rare) else 1.0


def _item(reader: _Reader) -> tuple[str, set[str]]:
    """One item: its plain text in lower case, or what is required by a group."""
    character = reader.take()
    if character == "(":
        return "", _group(reader)
    if character == "[":
        return _class(reader), set()
    if character == "\\":
        return _escaped(reader.take()), set()
    return ("" if character in ".^$" else character.lower()), set()


def _escaped(character: str) -> str:
    return "" if character in _CLASSES or character.isdigit() else character.lower()


def _class(reader: _Reader) -> str:
    """A set of characters is plain if it is one letter in both cases."""
    members = ""
    if reader.peek() == "^":
        members = reader.take()
    while reader.peek() != "]" or members in ("", "^"):
        character = reader.take()
        members += character + (reader.take() if character == "\\" else "")
    reader.take()
    return members[0].lower() if len(members) == 2 and members[0].lower() == members[1].lower() else ""


def _group(reader: _Reader) -> set[str]:
    """A group; one that only looks around requires nothing."""
    looks = False
    if reader.peek() == "?":
        start = reader.at
        while reader.peek() not in (":", "=", "!", ">", ")"):
            reader.take()
        looks = reader.peek() in ("=", "!")
        if reader.peek() == ")":  # flags of the whole pattern
            reader.take()
            return set()
        reader.take()
        if reader.pattern[start : reader.at].startswith("?P=") or reader.pattern[start : start + 2] == "?<":
            looks = True
    inside = _alternatives(reader)
    reader.take()
    return set() if looks else inside


def _is_optional(reader: _Reader) -> bool:
    return reader.pattern[reader.at : reader.at + 2].startswith(("?", "*", "{0", "{,"))


def _skip_quantifier(reader: _Reader) -> bool:
    """Step over a quantifier; True if there was one."""
    if reader.peek() and reader.peek() in "?*+":
        reader.take()
    elif reader.peek() == "{":
        while reader.take() != "}":
            pass
    else:
        return False
    if reader.peek() and reader.peek() in "?+":
        reader.take()
    return True

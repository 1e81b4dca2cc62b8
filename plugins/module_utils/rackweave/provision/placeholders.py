"""Secrets that are empty or inside addresses, and values that somebody meant to replace. No secret is ever repeated."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

_SECRET = re.compile(
    r"(^|_)(pass|password|passwd|passphrase|secret|token|api_?key|access_?key|munge_?key|private_?key|credentials?)$|(?-i:[a-z]Pass)$",
    re.IGNORECASE,
)
_BRACKETS = re.compile(r"\s*<[^<>]*>\s*")
_WORDS = re.compile(
    r"\s*(change[-_ ]?(me|this|it).*|replace[-_ ]?(me|this|with).*|place[-_ ]?holder.*|to[-_ ]?do\b.*|fix[-_ ]?me.*"
    r"|your[-_ ].*|insert[-_ ].*|x{3,}|\.{3}|\*{3,})\s*",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"://[^/\s:@]+:[^/\s@]+@")
_WEAK = re.compile(r"\s*(secret|password|passw0rd|example|dummy|test|none|null|admin|default)\s*", re.IGNORECASE)


def is_secret(name: str, declared: Collection[str] = ()) -> bool:
    """Return whether a variable holds a secret: it is declared one (``no_log``), or its name says so."""
    return name in declared or _SECRET.search(name) is not None


def placeholder_problems(variables: Mapping[str, Any], declared: Collection[str] = ()) -> list[str]:
    """Return one sentence for each empty or placeholder secret, and for each other value that is still a placeholder.

    Args:
        variables: values by name; mappings and lists are searched too.
        declared: names of options that their role declares as secret.
    """
    problems = []
    for path, name, value in _leaves(variables):
        secret = is_secret(name, declared) or is_secret(path.split(".")[0].split("[")[0], declared)
        if secret and (value is None or not str(value).strip()):
            problems.append(f"{path} is a secret and empty: give it from a vault, or leave the variable out")
        elif secret and (_is_placeholder(str(value)) or _WEAK.fullmatch(str(value))):
            problems.append(f"{path} is a secret and still a placeholder: give the real one from a vault")
        elif isinstance(value, str) and _ADDRESS.search(value):
            problems.append(
                f"{path} holds a password in an address, which would be printed and written to readable files; "
                "keep it in netrc or in apt's auth.conf.d on the nodes"
            )
        elif not secret and isinstance(value, str) and _is_placeholder(value):
            problems.append(f"{path} is still a placeholder ({value.strip()!r}); replace it")
    return problems


def _is_placeholder(value: str) -> bool:
    return _BRACKETS.fullmatch(value) is not None or _WORDS.fullmatch(value) is not None


def _leaves(value: Any, path: str = "", name: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield path, name of the nearest key, and value of each leaf; a secret list or mapping counts by its leaves."""
    if isinstance(value, Mapping):
        for key, part in sorted(value.items(), key=lambda item: str(item[0])):
            yield from _leaves(part, f"{path}.{key}" if path else str(key), str(key))
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from _leaves(part, f"{path}[{index}]", name)
    else:
        yield path, name, value

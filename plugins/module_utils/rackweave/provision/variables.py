"""Check the variables of an inventory against the argument specifications of the roles, before anything runs."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .placeholders import is_secret, placeholder_problems
from .repositories import repository_clashes

_TYPES: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "list": (list, tuple),
    "dict": (dict,),
    "str": (str, int, float, bool),
    "path": (str,),
}
_NAMES = {"bool": "true or false", "int": "a whole number", "float": "a number", "list": "a list", "dict": "a mapping"}
# Bytes of the largest file systems are below it; above, a float has no longer every whole number.
_LARGEST = 2.0**53
_TRUTH = ("yes", "no", "true", "false", "on", "off")


@dataclass(frozen=True)
class Problem:
    """One configuration error; problems that differ only in their host are one sentence for the user."""

    text: str
    host: str


def check_host(
    host: str, variables: Mapping[str, Any], specs: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> list[Problem]:
    """Return what is wrong with the variables of one host.

    Args:
        host: its name.
        variables: templated values by name; variables of no role are passed over.
        specs: role to the options of its ``main`` entry point.
    """
    declared = {name for options in specs.values() for name, option in options.items() if option.get("no_log")}
    problems = [Problem(text, host) for text in placeholder_problems(variables, declared)]
    for name, value in sorted(variables.items()):
        role = owner(name, specs)
        if role is None:
            continue
        option = specs[role].get(name)
        message = unknown(name, specs) if option is None else wrong(name, value, option)
        if message and is_secret(name, declared):
            message = message.replace(repr(value), "what it is (a secret, not shown)")
        if message:
            problems.append(Problem(message, host))
    problems += [Problem(text, host) for text in repository_clashes(variables)]
    for role, options in sorted(specs.items()):
        for name, option in sorted(options.items()):
            if option.get("required") and name not in variables:
                problems.append(Problem(f"{name} is required by role {role}", host))
    return problems


def owner(name: str, roles: Iterable[str]) -> str | None:
    """Return the role whose prefix the variable bears, the longest one if several do."""
    fitting = [role for role in roles if name.startswith(f"{role}_")]
    return max(fitting, key=len) if fitting else None


def unknown(name: str, specs: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the sentence about a variable that no role knows, with the nearest name that one does."""
    known = [option for options in specs.values() for option in options]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{name} is a variable of no role{hint}"


def wrong(name: str, value: Any, option: Mapping[str, Any]) -> str | None:
    """Return the sentence about a value of the wrong type or choice; None if it is right."""
    kind = str(option.get("type", "str"))
    expected = _TYPES.get(kind)
    if value is None or expected is None:
        return None
    truth_in_number = kind in ("int", "float") and isinstance(value, bool)
    if (not isinstance(value, expected) and not _readable(kind, value)) or truth_in_number:
        return f"{name} must be {_NAMES.get(kind, 'a text')}, not {value!r}"
    outside = _out_of_bounds(name, value, option.get("default")) if kind in ("int", "float") else None
    choices = option.get("choices")
    several = isinstance(value, (list, tuple))
    if not outside and choices and not all(part in choices for part in (value if several else [value])):
        of = "only hold" if several else "be one of"
        return f"{name} must {of} {', '.join(map(str, choices))}, not {value!r}"
    return outside


def _out_of_bounds(name: str, value: Any, default: object) -> str | None:
    """Return the sentence about a number that nothing can be counted by: below zero, if its default is not, or none."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isnan(number) or abs(number) > _LARGEST:
        return f"{name} must be a number that can be meant, not {number:g}"
    lowest = default if isinstance(default, (int, float)) and default < 0 else 0
    return f"{name} must be at least {lowest:g}, not {number:g}" if number < lowest else None


def _readable(kind: str, value: Any) -> bool:
    """Return whether Ansible would convert a text to the type: ``-e`` gives texts only."""
    if not isinstance(value, str):
        return False
    if kind == "bool":
        return value.lower() in _TRUTH
    if kind in ("int", "float"):
        try:
            float(value) if kind == "float" else int(value)
        except ValueError:
            return False
        return True
    return False


def sentences(problems: Iterable[Problem]) -> list[tuple[str, list[str]]]:
    """Return each distinct sentence with the hosts it is true of."""
    hosts: dict[str, list[str]] = {}
    for problem in problems:
        hosts.setdefault(problem.text, []).append(problem.host)
    return sorted(hosts.items())

"""One entry of the signature tables: what to look for in a line, what it means and whom it names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from .literals import required


@dataclass(frozen=True)
class Signature:
    """A fault as one producer prints it.

    Attributes:
        name: unique; ``class/producer detail``.
        diagnosis: a class of the closed list, or ``fact:...`` for something a scene needs to know.
        pattern: searched in the message without its prefixes. Named groups ``rank``, ``rank2``, ``host`` and
            ``peer`` name culprits (a peer is a host or an address).
        example: a line of the real format, used by the tests.
        blame: whom the *printing* side adds: ``""``, ``host``, ``rank`` or ``both``.
        role: ``root``, ``cascade`` or ``teardown``.
        depth: smaller is nearer to the cause; decides between classes of one incident.
        unless: a pattern that makes the line something else.
        severity: overrides the class's.
        action: overrides the class's first action.
        whole: a report of a health check: searched in the whole line, levels included, which has an alarm word.
    """

    name: str
    diagnosis: str
    pattern: str
    example: str
    blame: str = ""
    role: str = "root"
    depth: int = 30
    unless: str = ""
    severity: str = ""
    action: str = ""
    whole: bool = False

    @cached_property
    def needs(self) -> frozenset[str]:
        """Texts in lower case and without digits, one of which every matching line contains (the fast first filter)."""
        return required(self.pattern)

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The compiled pattern."""
        return re.compile(self.pattern)

    @cached_property
    def excluded(self) -> re.Pattern[str] | None:
        """The compiled ``unless``; None where there is none."""
        return re.compile(self.unless) if self.unless else None

    @cached_property
    def reads_digits(self) -> bool:
        """Whether two lines that differ only in digits can differ in their answer."""
        bare = re.sub(r"\\[dws]|\{\d*,?\d*\}|\(\?P<\w+>", "", self.pattern + self.unless)
        return bool(re.search(r"\d|\(\?[<!=]", bare))

    def search(self, text: str) -> re.Match[str] | None:
        """Return the match in a message, or None."""
        match = self.regex.search(text)
        if match is None or (self.whole and _ALERT.search(text) is None):
            return None
        if self.excluded is not None and self.excluded.search(text):
            return None
        return match


# Words with which health checks and monitors raise an alarm, and those with which they say that all is well.
_ALERT = re.compile(
    r"(?i)\b(?:fail\w*|error|err|crit(?:ical)?|fatal|alert|warn(?:ing)?|unhealthy|emerg\w*|degraded|drain\w*|"
    r"replace\w*|detected|\w*(?:Not|Un)Healthy)\b"
)
FINE = (
    r"(?i)\b(?:pass(?:ed)?|ok|healthy|none|zero|recovered|restored|cleared|thresholds?:?|watching|monitoring|"
    r"test_\w+)\b|"
    r"\bno (?!longer)|[=:] ?0(?![.\dx])|\bnot (?:detected|degraded|seen)|[=:] ?(?:false|no)\b|"
    r"(?<![\w.:])0 (?:\w+ )?(?:pending|fail\w*|errors?|faults?|flaps|down|lost|bad|missing|stalled|dead|inactive|"
    r"degraded)\b|\b(?:fail\w*|errors?|faults?|flaps|kills?|count) 0\b(?![.:])"
)


def report(words: str) -> str:
    """What is wrong, in the words of a health check; its line (``whole``) has an alarm word too."""
    return rf"(?i)(?:{words})"


# A line that is a comment, a shell trace or a search, not a report.
_COMMENT = re.compile(
    r"\s*(?:#(?!\d)|//|;;|\* |--[a-z][\w-]+[ =]|[Uu]sage: |"
    r"\+{1,3} (?!(?:exec |env |time |nohup |numactl [^|]*)?(?:torchrun|srun|python|deepspeed|accelerate|bash))|"
    r"\$ |>>> |> |(?:echo|grep|egrep|rg|sed|awk|"
    r"printf|alias|cat)\s)"
)
# Words before the match that make it advice, documentation or history.
_ADVICE = re.compile(
    r"\b(?:if you (?:see|get|encounter|hit)|in case of|in the event of|for example|such as|known issue|"
    r"troubleshoot\w*|hint:|tip:|"
    r"see also|faq|runbook|playbook says|would (?:print|raise|show)|looks like|grep (?:for|-)|alert rule|"
    r"pattern\s*[=:]|regex\w*|"
    r"\bpolic(?:y|ies)\b[^:]{0,24}:|older than \d+|skipping (?:this|these|known|old)|already (?:reported|handled|"
    r"known)|unit test|test case|"
    r"simulat(?:e|ing|ed|ion)|inject(?:ing|ed|ion)?\b|last (?:week|month|time|run)"
    r"|yesterday|used to|"
    r"(?:searching|watching|checking) for|looking for(?! (?:\w+ ){0,2}(?:checkpoint|snapshot))|to (?:avoid|prevent|"
    r"detect)|handles?|will (?:catch|retry "
    r"on)|retry[_ ]on|error_messages?\s*=|"
    r"(?:if|unless|upon|in case of)(?: an?| the)?(?=\W{0,3}$)|ignor(?:e|es|ed|ing)|"
    r"fixed|resolved|workaround for|protects? against|help\s*[=:]|description\s*[=:]|"
    r"usage:)(?=\W|$)",
    re.IGNORECASE,
)
# A sample of an evaluation or of data that a trainer prints: the match stands in a string that is still open.
_PRINTED = re.compile(
    r"\b(?:prompt|question|answer|completion|instruction|generat(?:ion|ed)(?:[ _]text)?|"
    r"(?:sample|example)\W{0,2}#?\d+\W{0,3}\w*)[\"']?\s*[:=]\s*(?P<q>[\"'])(?:(?!(?P=q)(?!\w)).)*$",
    re.IGNORECASE,
)


def quoted(text: str, start: int) -> bool:
    """Whether a match that begins at ``start`` is quoted (comment, advice, search) rather than reported."""
    if _COMMENT.match(text):
        return True
    return start > 3 and bool(_ADVICE.search(text, 0, start) or _PRINTED.search(text, 0, start))

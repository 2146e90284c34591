"""Command lines as PBS's commands read them, and the directives of a job script; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .errors import UsageError

QSUB = "a:A:c:C:e:fGhIj:J:k:l:m:M:N:o:p:P:q:r:R:S:u:v:VW:Xz"
QSUB_USAGE = """\
usage: qsub [-a date_time] [-A account_string] [-c interval]
\t[-C directive_prefix] [-e path] [-f ] [-h ] [-I [-X]] [-j oe|eo] [-J X-Y[:Z]]
\t[-k keep] [-l resource_list] [-m mail_options] [-M user_list]
\t[-N jobname] [-o path] [-p priority] [-P project] [-q queue] [-r y|n]
\t[-R o|e|oe] [-S path] [-u user_list] [-W otherattributes=value...]
\t[-v variable_list] [-V ] [-z] [script | -- command [arg1 ...]]
       qsub --version
"""
MAX_NAME = 230
_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
_ARRAY = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?:%(\d+))?")


def getopt(spec: str, argv: list[str], usage: str, command: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Options in the order given (flag, value; "" for a flag without value), and the operands.

    Like GNU getopt, options may follow operands. Raises UsageError.
    """
    options: list[tuple[str, str]] = []
    operands: list[str] = []
    at = 0
    while at < len(argv):
        word = argv[at]
        at += 1
        if word == "--":
            return options, operands + argv[at:]
        if word == "-" or not word.startswith("-"):
            operands.append(word)
            continue
        flags = word[1:]
        while flags:
            flag, flags = flags[0], flags[1:]
            found = spec.find(flag)
            if flag == ":" or found < 0:
                raise UsageError(f"{command}: invalid option -- '{flag}'\n{usage}")
            if spec[found + 1 : found + 2] != ":":
                options.append((flag, ""))
                continue
            if not flags:
                if at >= len(argv):
                    raise UsageError(f"{command}: option requires an argument -- '{flag}'\n{usage}")
                flags, at = argv[at], at + 1
            options.append((flag, flags))
            break
    return options, operands


@dataclass(slots=True)
class Submission:
    """What one qsub asks for; `resources` are the -l values in the order given."""

    values: dict[str, str] = field(default_factory=dict)
    resources: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    variables: str | None = None
    export_all: bool = False
    hold: bool = False
    array: tuple[int, int, int, int | None] | None = None
    executable: list[str] | None = None
    script_name: str | None = None

    def add(self, options: list[tuple[str, str]], override: bool) -> None:
        """Take in options; those that are set already are kept unless `override`. Raises UsageError."""
        for flag, value in options:
            if flag == "l":
                for name, resource in _resource_list(value).items():
                    if override or name not in self.resources:
                        self.resources[name] = resource
            elif flag == "W":
                for name, other in _others(value).items():
                    if override or name not in self.others:
                        self.others[name] = other
            elif flag == "v":
                self.variables = value if override or self.variables is None else self.variables
            elif flag in "Vh":
                self.export_all |= flag == "V"
                self.hold |= flag == "h"
            elif override or flag not in self.values:
                check_value(flag, value)
                self.values[flag] = value
        if "J" in self.values:
            self.array = parse_array(self.values["J"])
            if self.values.get("r") == "n":
                raise UsageError("qsub: cannot submit non-rerunable Array Job\n", 1)


def parse_qsub(argv: list[str]) -> Submission:
    """The command line of qsub, directives not yet taken in. Raises UsageError."""
    submission = Submission()
    if "--" in argv:
        cut = argv.index("--")
        argv, submission.executable = argv[:cut], argv[cut + 1 :]
    options, operands = getopt(QSUB, argv, QSUB_USAGE, "qsub")
    submission.add(options, override=True)
    if len(operands) > 1 or (operands and submission.executable):
        raise UsageError(QSUB_USAGE)
    submission.script_name = operands[0] if operands else None
    return submission


def directives(script: str, prefix: str) -> list[tuple[str, str]]:
    """The options in the `#PBS` lines above the first command of a script. Raises UsageError."""
    options: list[tuple[str, str]] = []
    if not prefix:
        return options
    for line in script.split("\n"):
        if line.startswith(prefix):
            words = _words(line[len(prefix) :])
            if words:
                options += getopt(QSUB, words, QSUB_USAGE, "qsub")[0]
        elif line.strip() and not line.lstrip().startswith(("#", ":")):
            break
    return options


def check_value(flag: str, value: str) -> None:
    """Refuse what the real qsub refuses before it talks to the server. Raises UsageError."""
    if flag == "N":
        if len(value) > MAX_NAME:
            raise UsageError("qsub: Job name is too long \n")
        bad = not _NAME.fullmatch(value)
    elif flag == "p":
        bad = not re.fullmatch(r"[+-]?\d+", value) or not -1024 <= int(value) <= 1023
    else:
        patterns = {
            "j": "oe|eo|n|o|e",
            "r": "[yn]",
            "k": "n|[oed]+",
            "R": "[oe]+",
            "m": "n|[abej]+",
            "J": _ARRAY.pattern,
        }
        bad = flag in patterns and not re.fullmatch(patterns[flag], value)
    if bad:
        raise UsageError(f"qsub: illegal -{flag} value\n{QSUB_USAGE}")


def parse_array(text: str) -> tuple[int, int, int, int | None]:
    """First, last, step and concurrent limit of `-J X-Y[:Z][%max]`. Raises UsageError."""
    match = _ARRAY.fullmatch(text)
    if match:
        first, last = int(match[1]), int(match[2])
        step = int(match[3] or 1)
        if first < last and step > 0:
            return first, last, step, int(match[4]) if match[4] else None
    raise UsageError(f"qsub: illegal -J value\n{QSUB_USAGE}")


def _resource_list(text: str) -> dict[str, str]:
    resources: dict[str, str] = {}
    for item in split_outside_quotes(text, ","):
        name, _, value = item.partition("=")
        if not name.strip():
            raise UsageError(f"qsub: illegal -l value\n{QSUB_USAGE}")
        resources[name.strip()] = value.strip()
    return resources


def _others(text: str) -> dict[str, str]:
    others: dict[str, str] = {}
    for item in re.split(r",(?=\s*[A-Za-z_]+=)", text):
        name, equals, value = item.strip().partition("=")
        if not equals:
            raise UsageError("qsub: illegal -W value\n" + QSUB_USAGE)
        others[name] = value
    return others


def split_outside_quotes(text: str, separator: str) -> list[str]:
    """Cut at the separator, but not inside quotation marks."""
    parts, quote = [""], ""
    for char in text:
        if char == separator and not quote:
            parts.append("")
            continue
        if char in "\"'" and quote in ("", char):
            quote = "" if quote else char
        parts[-1] += char
    return parts


def _words(text: str) -> list[str]:
    words, quote, open_word = [""], "", False
    for char in text:
        if char in "\"'" and quote in ("", char):
            quote, open_word = ("" if quote else char), True
        elif char in " \t" and not quote:
            if words[-1] or open_word:
                words.append("")
            open_word = False
        elif char == "#" and not quote and not words[-1]:
            break
        else:
            words[-1] += char
    return [word for word in words if word]

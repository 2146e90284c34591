"""The submit script holds what was asked, and nothing that was smuggled in."""

from __future__ import annotations

import doctest
import shlex
import subprocess
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbs_adapter import script
from pbs_adapter.errors import Rejected
from pbs_adapter.models import JobOptions, JobRef, JobRequest
from pbs_adapter.script import Site, render

UID = "11111111-2222-3333-4444-555555555555"
SITE = Site(
    f"/home/u/.hpc-bridge/i/pods/{UID}", "/home/u/.hpc-bridge/bin/podrun-0a.pyz", "/usr/bin/python3", "/opt/pbs"
)
PLAIN = JobOptions(ncpus=2, mem_bytes=1 << 30, walltime=3660)
HOSTILE = [
    "",
    " ",
    "-x",
    "a b",
    "a;b",
    "$(id)",
    "`id`",
    "a\nb",
    "a'b",
    'a"b',
    "a\\",
    "a|b",
    "a&b",
    "a>b",
    "a*",
    "a\0b",
    "é",
    "a,b",
    "#a",
    "a\r",
    "a\n",
    "a" * 300,
]


def request(options: JobOptions = PLAIN, name: str = f"hello.{UID}", comment: str = "pod default/hello") -> JobRequest:
    return JobRequest(JobRef("work", UID), name, options, (), comment=comment)


def words(options: JobOptions) -> list[str]:
    return shlex.split(render(request(options), SITE).splitlines()[-1])


def test_doctests() -> None:
    assert doctest.testmod(script).failed == 0


def test_the_whole_script() -> None:
    options = replace(
        PLAIN,
        resources={"ngpus": 1, "scratch_local": "10gb"},
        place="scatter:excl",
        queue="gpu",
        project="astro",
        accounting="grant-7",
        priority=-5,
    )
    directory = SITE.directory
    assert render(request(options), SITE) == (
        "#!/bin/sh\n# pod default/hello\n"
        f"/opt/pbs/bin/qsub -r n -c n -m n -j oe -koed -o {directory}/job.out -N hello.{UID} "
        "-q gpu -P astro -A grant-7 -p -5 "
        "-l select=1:ncpus=2:mem=1048576kb:ngpus=1:scratch_local=10gb -l place=scatter:excl "
        f"-l walltime=01:01:00 -- /usr/bin/python3 /home/u/.hpc-bridge/bin/podrun-0a.pyz {directory}\n"
    )


def test_what_is_left_out_is_left_to_the_site() -> None:
    line = words(PLAIN)
    assert not {"-q", "-P", "-A", "-p", "-V", "-v", "-f"} & set(line)
    assert "place" not in " ".join(line)
    bare = render(request(), replace(SITE, pbs_exec=None)).splitlines()[-1]
    assert bare.startswith("qsub -r n ")


@pytest.mark.parametrize(
    ("mem", "shown"), [(1, "1kb"), (1024, "1kb"), (1025, "2kb"), (1 << 40, "1073741824kb"), (10**9, "976563kb")]
)
def test_memory_is_rounded_up_to_kilobytes(mem: int, shown: str) -> None:
    assert f"select=1:ncpus=2:mem={shown}" in words(replace(PLAIN, mem_bytes=mem))


@pytest.mark.parametrize(
    "place",
    [
        "free",
        "pack",
        "scatter",
        "vscatter",
        "excl",
        "shared",
        "exclhost",
        "group=switch",
        "pack:excl",
        "pack:group=r-1_x",
        "scatter:exclhost:group=switch",
        "excl:group=host",
    ],
)
def test_places_of_pbs(place: str) -> None:
    assert f"place={place}" in words(replace(PLAIN, place=place))


@pytest.mark.parametrize(
    "place",
    [
        *HOSTILE,
        "sideways",
        "excl:pack",
        "pack:",
        ":excl",
        "pack::excl",
        "packexcl",
        "group=",
        "group=1a",
        "pack:pack",
        "pack:group=a:excl",
        "exclgroup=a",
        "free -l walltime=1",
    ],
)
def test_other_places_are_refused(place: str) -> None:
    with pytest.raises(Rejected, match=r"\[free\|pack\|scatter\|vscatter\]"):
        render(request(replace(PLAIN, place=place)), SITE)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("field", ["queue", "project", "accounting", "place"])
def test_hostile_options_are_refused(field: str, text: str) -> None:
    changes: dict[str, Any] = {field: text}
    with pytest.raises(Rejected, match="is not allowed: "):
        render(request(replace(PLAIN, **changes)), SITE)


@pytest.mark.parametrize("text", ["gpu@other", "a/b", "q" * 16, "@srv"])
def test_queues_elsewhere_are_refused(text: str) -> None:
    with pytest.raises(Rejected, match="at most 15"):
        render(request(replace(PLAIN, queue=text)), SITE)


@pytest.mark.parametrize("text", [*HOSTILE, "n" * 231, ".a", "+a", "a/b", "a:b", "a@b"])
def test_hostile_names_are_refused(text: str) -> None:
    with pytest.raises(Rejected, match="at most 230"):
        render(request(name=text), SITE)


def test_the_longest_name_is_taken() -> None:
    assert "n" * 230 in render(request(name="n" * 230), SITE)


@pytest.mark.parametrize(
    "text", [*HOSTILE, "relative/x", "/a/../b", "/a/./b", "//a", "/a/", "/", "/a:b", "/..", "/b" * 600]
)
@pytest.mark.parametrize("field", ["directory", "podrun", "python", "pbs_exec"])
def test_hostile_paths_are_refused(field: str, text: str) -> None:
    if field == "pbs_exec" and not text:
        return  # as good as None
    changes: dict[str, Any] = {field: text}
    with pytest.raises(Rejected, match="absolute path"):
        render(request(), replace(SITE, **changes))


@pytest.mark.parametrize("path", ["/a", "/storage/brno2/home/u.v/x-1", "/a/.hpc-bridge/..x", "/a/b+c@d%e=f~"])
def test_usual_paths_are_taken(path: str) -> None:
    assert f"{path}/job.out" in shlex.split(render(request(), replace(SITE, directory=path)).splitlines()[-1])


@pytest.mark.parametrize("name", [*HOSTILE, "ncpus", "MEM", "select", "walltime", "place", "nodes", "1a", "a=b", "a:b"])
def test_hostile_resources_are_refused(name: str) -> None:
    with pytest.raises(Rejected):
        render(request(replace(PLAIN, resources={name: 1})), SITE)


@pytest.mark.parametrize("value", [*HOSTILE, "1:ncpus=999", "1+1", -1, 2**31, True])
def test_hostile_values_are_refused(value: int | str) -> None:
    with pytest.raises(Rejected, match="is not allowed"):
        render(request(replace(PLAIN, resources={"ngpus": value})), SITE)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("ncpus", [0, -1, 2**31, 1.5, "2", True, None]),
        ("mem_bytes", [0, -1, 2**61, 1.5, "1gb"]),
        ("walltime", [0, -1, 10**10, 60.0, "01:00:00"]),
        ("priority", [-1025, 1024, "1", 0.5]),
    ],
)
def test_numbers_out_of_range_are_refused(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(Rejected, match=f"{field} .* a whole number from"):
            render(request(replace(PLAIN, **{field: value})), SITE)


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=600))
def test_a_comment_stays_one_comment(comment: str) -> None:
    lines = render(request(comment=comment), SITE).split("\n")
    assert len(lines) == 4
    assert lines[1].startswith("# ")
    assert all(" " <= c <= "~" for c in lines[1])


def test_a_shell_passes_on_exactly_these_words(tmp_path: Any) -> None:
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "qsub").write_text('#!/bin/sh\nfor word; do printf "%s\\n" "$word"; done\n')
    (directory / "qsub").chmod(0o700)
    text = render(request(comment="$(exit 3); `id`"), replace(SITE, pbs_exec=None))
    done = subprocess.run(
        ["/bin/sh"], input=text, env={"PATH": str(directory)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == words(PLAIN)[1:]

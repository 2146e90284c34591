"""The hand-written pages agree with the code: options, exit statuses, links, the tests that they name, the map."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import click
import plancases
import pytest
import yaml
from click.testing import CliRunner

from bridge.cli import VERBS, main
from bridge.plan import plan
from bridge.pods.outcome import PBS_EXIT
from pbs_adapter.remote.helper_status import parse_status
from pbs_adapter.remote.podrun_spec import load

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
CLI = (DOCS / "reference/cli.md").read_text(encoding="utf-8")
PAGES = sorted([*DOCS.rglob("*.md"), *REPOSITORY.glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TEST = re.compile(r"`((?:unit|contract|e2e|containers)/[\w/]+\.py)::(\w+)`")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def section(verb: str) -> str:
    """What the page says under the heading of a verb."""
    found = re.search(rf"^## hpc-bridge {verb}$(.*?)(?=^## |\Z)", CLI, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the page has no section for {verb}"
    return found[1]


def options(verb: str) -> list[click.Option]:
    command = main.get_command(click.Context(main), verb)
    assert command is not None
    return [each for each in command.params if isinstance(each, click.Option)]


def rows(text: str) -> dict[str, str]:
    """Long option → its row in the table of options."""
    lines = [line.replace("\\|", "|") for line in text.splitlines() if line.startswith("| `-")]
    return {found[0]: line for line in lines if (found := OPTION.search(line))}


def test_every_verb_has_a_section_and_no_other() -> None:
    assert tuple(re.findall(r"^## hpc-bridge (\w+)$", CLI, re.MULTILINE)) == VERBS
    assert re.findall(r"^\| \[`(\w+)`\]", CLI, re.MULTILINE) == list(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_options_are_the_commands_own(verb: str) -> None:
    told = rows(section(verb))
    context = click.Context(click.Command(verb))
    assert set(told) == {name for each in options(verb) for name in each.opts if name.startswith("--")}
    for option in options(verb):
        row = told[next(name for name in option.opts if name.startswith("--"))]
        for name in option.opts:
            assert f"`{name}" in row
        if not option.is_flag:
            assert option.make_metavar(context) in row
        if option.default is not None and option.show_default:
            assert f"`{option.default}`" in row
        if option.envvar:
            assert f"`{option.envvar}`" in row


@pytest.mark.parametrize("verb", VERBS)
def test_options_named_in_the_prose_exist(verb: str) -> None:
    known = {name for each in options(verb) for name in each.opts}
    assert set(OPTION.findall(section(verb))) <= known | {"--help"}


@pytest.mark.parametrize("verb", VERBS)
def test_a_wrong_option_is_exit_status_2(verb: str) -> None:
    assert CliRunner().invoke(main, [verb, "--no-such-option"]).exit_code == 2


@pytest.mark.parametrize("verb", ["render", "run", "validate"])
def test_wrong_settings_are_exit_status_2(verb: str, tmp_path: Path) -> None:
    config = tmp_path / "bridge.yaml"
    config.write_text("clusters: []\nnonsense: 1\n")
    pod = tmp_path / "pod.yaml"
    pod.write_text("kind: Pod\n")
    done = CliRunner().invoke(main, [verb, "-c", str(config), *([str(pod)] if verb == "render" else [])])
    assert done.exit_code == 2
    assert f"{config}:2: nonsense" in done.output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}, target


def blocks(page: str, kind: str) -> list[str]:
    """The fenced blocks of one kind."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{kind}$\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_readmes_pod_is_honoured() -> None:
    (text,) = blocks("README.md", "yaml")
    planned = plan(yaml.safe_load(text), plancases.cluster())
    assert planned.refusals == ()
    assert (planned.options.ncpus, planned.options.mem_bytes) == (2, (1 << 30) + (256 << 20))


def test_the_documented_pod_json_has_every_key_and_is_what_podrun_reads(tmp_path: Path) -> None:
    text, _ = blocks("docs/explanation/on-the-cluster.md", "json")
    mounting = plancases.container(volumeMounts=[{"name": "data", "mountPath": "/data"}])
    frozen = plancases.frozen(plancases.pod(containers=[mounting], volumes=[{"name": "data", "emptyDir": {}}]))
    written = json.loads(frozen.files[0].content)
    shown = json.loads(text)
    assert set(shown) == set(written)
    assert set(shown["containers"][0]) == set(written["containers"][0])
    assert set(shown["containers"][0]["mounts"][0]) == set(written["containers"][0]["mounts"][0])
    (tmp_path / "pod.json").write_text(text)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/values.json").write_text(json.dumps({"v0": base64.b64encode(b"hidden").decode()}))
    assert load(str(tmp_path)).containers[0].env[-1] == (b"KEY", b"hidden")


def test_the_documented_status_json_is_what_the_helper_believes() -> None:
    _, text = blocks("docs/explanation/on-the-cluster.md", "json")
    status, problem = parse_status(text.encode(), json.loads(text)["uid"])
    assert problem == ""
    assert status == json.loads(text)


def test_pages_do_not_name_files_that_are_gone() -> None:
    for page in PAGES:
        for name in re.findall(r"`((?:bridge|pbs_adapter|deploy|examples|tests)/[\w./]+)`", page.read_text("utf-8")):
            assert (REPOSITORY / name).exists(), f"{page.name}: {name}"


@pytest.mark.parametrize("page", ["promises", "security"])
def test_what_is_promised_is_shown_by_a_test(page: str) -> None:
    named = set(TEST.findall((DOCS / f"explanation/{page}.md").read_text(encoding="utf-8")))
    assert len(named) > 10
    for file, name in sorted(named):
        source = REPOSITORY / "tests" / file
        assert source.exists(), file
        assert f"def {name}(" in source.read_text(encoding="utf-8"), f"{file} has no {name}"


def test_the_exit_statuses_of_pbs_are_all_told() -> None:
    page = (DOCS / "reference/exit-codes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (-\d+(?:, -\d+)*) \| `(\w+)` \| (yes|no) \|", page, re.MULTILINE)
    told = {int(number): (reason, word == "yes") for numbers, reason, word in rows for number in numbers.split(", ")}
    assert told == {number: (reason, disruption) for number, (reason, _, disruption) in PBS_EXIT.items()}


def test_the_map_fits_one_screen() -> None:
    assert len((REPOSITORY / "AGENTS.md").read_text(encoding="utf-8").splitlines()) <= 60


def test_every_page_is_in_the_contents() -> None:
    listed = re.findall(r": ([\w/-]+\.md)$", (DOCS / "_site/mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))

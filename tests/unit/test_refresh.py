"""What changed sources write into volumes of a pod that is queued or runs."""

from __future__ import annotations

from plancases import NODE, cluster, config_map, container, contents, inputs, pod, secret

from bridge.plan import plan, refresh

TOKEN = {"sources": [{"serviceAccountToken": {"path": "token"}}]}
POD = pod(
    containers=[container(env=[{"name": "E", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}}])],
    volumes=[
        {"name": "cm", "configMap": {"name": "cm"}},
        {"name": "sec", "secret": {"secretName": "s"}},
        {"name": "tok", "projected": TOKEN},
        {"name": "own", "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "empty", "emptyDir": {}},
    ],
)
PLAN = plan(POD, cluster())


def test_refresh_writes_every_volume_that_has_a_source() -> None:
    given = inputs(config_map(data={"k": "2"}), secret(k=b"new"), token="t2", refs=PLAN.inputs)
    found = {files.root: contents(files) for files in refresh(POD, PLAN, given, node=NODE)}
    assert found == {
        "volumes/cm": {"k": b"2"},
        "secrets/volumes/sec": {"k": b"new"},
        "secrets/volumes/tok": {"token": b"t2"},
        "volumes/own": {"l": b""},
    }


def test_a_volume_whose_source_is_gone_keeps_what_it_has() -> None:
    found = refresh(POD, PLAN, inputs(secret(k=b"new")), node=NODE)
    assert [files.root for files in found] == ["secrets/volumes/sec", "volumes/own"]


def test_an_optional_source_that_is_gone_empties_its_volume() -> None:
    sources = [{"secret": {"name": "s", "optional": True}}, {"configMap": {"name": "cm", "optional": True}}]
    thing = pod(
        containers=[container()],
        volumes=[
            {"name": "sec", "secret": {"secretName": "s", "optional": True}},
            {"name": "both", "projected": {"sources": sources}},
            {"name": "empty", "emptyDir": {}},
        ],
    )
    made = plan(thing, cluster())
    before = refresh(thing, made, inputs(config_map(data={"c": "1"}), secret(k=b"1")), node=NODE)
    assert [sorted(contents(files)) for files in before] == [["k"], ["c", "k"]]
    after = refresh(thing, made, inputs(config_map(), refs=made.inputs), node=NODE)
    assert [(files.root, files.files, files.managed) for files in after] == [
        ("secrets/volumes/sec", (), True),
        ("secrets/volumes/both", (), True),
    ]


def test_refresh_sees_new_labels() -> None:
    changed = POD | {"metadata": POD["metadata"] | {"labels": {"a": "b"}}}
    found = refresh(changed, PLAN, inputs(), node=NODE)
    assert contents(found[0]) == {"l": b'a="b"'}

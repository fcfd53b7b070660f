"""`make deploy` to an existing cluster, with stand-ins for the tools that record their calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e import deploy
from tests.repository.tree import ROOT

_DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}
TAGS = {name: f"localhost/evenkeel-{name}:1-0123456789ab" for name in ("operator", "store")}


class Scene:
    """A PATH with stand-ins for kubectl, helm, kind and docker, and their recorded calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "log"
        self.answers({"metadata": {"name": f"worker-{number}"}, "status": {}} for number in range(3))
        self.add("kind")
        self.add("docker")
        self.add("helm", f'cat >"{folder}/values"')

    def add(self, name: str, script: str = "") -> None:
        file = self.folder / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >>"{self._log}"\n{script}\n')
        file.chmod(0o755)

    def answers(self, nodes: Any, *, context: str = "somewhere", classes: tuple[Any, ...] = (_DEFAULT,)) -> None:
        """What the API server has."""
        found = [{"metadata": {"name": "standard", "annotations": annotations}} for annotations in classes]
        cases = {"*nodes*": {"items": list(nodes)}, "*storageclasses*": {"items": found}}
        lines = "".join(f"{pattern}) echo '{json.dumps(answer)}' ;;\n" for pattern, answer in cases.items())
        self.add("kubectl", f'case "$*" in\n*current-context*) echo {context} ;;\n{lines}esac')

    def calls(self, program: str) -> list[str]:
        return [call for call in self._log.read_text().splitlines() if call.startswith(f"{program} ")]

    def values(self) -> Any:
        return json.loads((self.folder / "values").read_text())


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("EVENKEEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EVENKEEL_CLUSTER", "current")
    for name in ("EVENKEEL_REGISTRY", "KUBEBUILDER_ASSETS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(deploy, "built", TAGS.__getitem__)
    monkeypatch.setattr(deploy, "export", lambda tag: Path(f"{tag.partition(':')[0].rpartition('/')[2]}.tar"))
    monkeypatch.setattr("e2e.cluster.current.tags_of", lambda archive: [TAGS[archive.stem.removeprefix("evenkeel-")]])
    monkeypatch.setattr("e2e.cluster.current._SEEN_SECONDS", 0.0)
    return Scene(tmp_path)


def test_a_registry(scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Images are pushed to the registry and pulled from it, except etcd's; the next command is printed."""
    monkeypatch.setenv("EVENKEEL_REGISTRY", "registry.example/team/")
    assert deploy.main() == 0
    pushed = [f"registry.example/team/evenkeel-{name}:1-0123456789ab" for name in ("operator", "store")]
    assert [call for call in scene.calls("docker") if "push" in call] == [f"docker push {tag}" for tag in pushed]
    values = scene.values()
    assert values["image"] == {
        "repository": "registry.example/team/evenkeel-operator",
        "tag": "1-0123456789ab",
        "pullPolicy": "IfNotPresent",
    }
    assert values["storeImage"]["repository"] == "registry.example/team/evenkeel-store"
    assert "image" not in values["etcd"]
    [applied] = [call for call in scene.calls("kubectl") if " apply " in call]
    assert f"--filename={ROOT}/examples/orders.yaml" in applied
    assert "helm uninstall evenkeel" in capsys.readouterr().out


def test_a_cluster_of_kinds(scene: Scene) -> None:
    """If the current context is kind's, images are loaded into it."""
    scene.answers([{"metadata": {"name": "kind-worker"}, "status": {}}], context="kind-mine")
    assert deploy.main() == 0
    assert scene.calls("kind") == [
        "kind load image-archive evenkeel-operator.tar --name mine",
        "kind load image-archive evenkeel-store.tar --name mine",
    ]
    assert scene.values()["image"]["pullPolicy"] == "Never"


def test_one_node(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """On fewer than three nodes etcd has one member and stores share nodes; on three neither is so."""
    monkeypatch.setenv("EVENKEEL_REGISTRY", "registry.example")
    assert deploy.main() == 0
    assert "members" not in scene.values()["etcd"]
    scene.answers([{"metadata": {"name": "alone"}, "status": {}}])
    assert deploy.main() == 0
    assert (scene.values()["etcd"]["members"], scene.values()["stores"]["apart"]) == (1, False)


def test_nodes_without_images(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a registry and without images on the nodes, both remedies are printed before anything is installed."""
    assert deploy.main() == 1
    error = capsys.readouterr().err
    assert "worker-0, worker-1, worker-2 lack localhost/evenkeel-operator" in error
    assert "EVENKEEL_REGISTRY=" in error
    assert scene.calls("helm") == []


def test_no_storage(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster without a default StorageClass is refused at once, with the remedy."""
    scene.answers([], classes=({},))
    assert deploy.main() == 1
    assert "annotate one with storageclass.kubernetes.io/is-default-class=true" in capsys.readouterr().err

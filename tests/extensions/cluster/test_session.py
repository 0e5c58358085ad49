"""Checks before a run: each missing resource of a cluster is reported in one sentence."""

import socket
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.config.sections import ClusterConfig
from fieldcraft.extensions.cluster import session
from fieldcraft.extensions.cluster.session import open_cluster, require_same_versions
from fieldcraft.types import UserError


def refused(cluster: ClusterConfig, folder: Path, device: str = "cpu") -> str:
    """Return the error message."""
    with pytest.raises(UserError) as caught, open_cluster(cluster, device, folder):
        pass
    assert list(folder.iterdir()) == []
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_fewer_cores_than_asked_for(ray: Any, tmp_path: Path, device: str) -> None:
    sentence = refused(ClusterConfig(trainers=7, engines=2), tmp_path, device)
    assert "requires 9 devices (7 trainers and 2 engines), but the cluster has 8:" in sentence


def test_fewer_gpus_than_asked_for(ray: Any, tmp_path: Path) -> None:
    sentence = refused(ClusterConfig(trainers=2), tmp_path, "cuda")
    assert "requires 2 devices (2 trainers and 0 engines), but the cluster has 0:" in sentence


def test_devices_that_another_run_has(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first"
    second = tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with open_cluster(ClusterConfig(trainers=5), "cpu", first), monkeypatch.context() as impatient:
        impatient.setattr(session, "RESERVE_TIMEOUT_SECONDS", 1)
        assert "another run may hold them" in refused(ClusterConfig(engines=5), second)
    with open_cluster(ClusterConfig(engines=5), "cpu", second) as found:  # all are free again
        assert [place.index for place in found.select_placements("engine")] == [0, 1, 2, 3, 4]


def test_a_port_in_use(ray: Any, tmp_path: Path) -> None:
    with socket.create_server((ray.util.get_node_ip_address(), 0)) as server:
        port = server.getsockname()[1]
        sentence = refused(ClusterConfig(trainers=1, rendezvous_port=port), tmp_path)
        with open_cluster(ClusterConfig(engines=1, rendezvous_port=port), "cpu", tmp_path):
            pass  # without trainers no process listens on it
    assert f"cluster.rendezvous_port={port} is in use on the node" in sentence
    with open_cluster(ClusterConfig(trainers=1, rendezvous_port=port), "cpu", tmp_path) as found:
        assert found.summary == f"device cpu: 1 trainers on {found.nodes[0].address}"


def test_other_versions() -> None:
    versions = {"Python": "3.12.1", "torch": "2.13.0", "fieldcraft": "0.1.0"}
    require_same_versions(versions, dict(versions), "10.0.0.2")
    with pytest.raises(UserError, match=r"2 has torch 2\.12\.0 and this machine has 2\.13"):
        require_same_versions(versions, {**versions, "torch": "2.12.0"}, "10.0.0.2")


def test_colocated_engines_take_no_devices_of_their_own(ray: Any, tmp_path: Path) -> None:
    class Named:  # pickled by value, unlike a class of the module
        def name(self) -> str:
            return "engine"

    cluster = ClusterConfig(trainers=5, engines=5, colocate=True)
    with open_cluster(cluster, "cpu", tmp_path) as found:
        assert len(found.placements) == 10
        actors = [found.start_actor(place, Named) for place in found.select_placements("engine")]
        assert ray.get([actor.name.remote() for actor in actors]) == ["engine"] * 5
        for actor in actors:
            ray.kill(actor)


def test_a_ray_that_starts_too_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")

    def slow(**_: Any) -> None:
        raise Exception("The current node timed out during startup. Maybe the GCS is busy.")

    monkeypatch.setattr(ray, "init", slow)  # a real one takes half a minute and a busy machine
    with pytest.raises(UserError, match=r"did not start in time \(The current node timed out"):
        session._start_ray(ClusterConfig(), "cpu")

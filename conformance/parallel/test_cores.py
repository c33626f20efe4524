"""How many threads there are by default: as many as this process may use cores."""

import pytest

from kernels.cpu import cores

SECOND, FIRST = "0::/service/engine\n", "4:cpu,cpuacct:/service\n2:memory:/service\n0::/\n"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        pytest.param(SECOND, {}, float("inf"), id="no files"),
        pytest.param(SECOND, {"service/engine/cpu.max": "max 100000"}, float("inf"), id="none"),
        pytest.param(SECOND, {"service/engine/cpu.max": "150000 100000"}, 1.5, id="own"),
        pytest.param(
            SECOND,
            {"service/engine/cpu.max": "400000 100000", "service/cpu.max": "50000 100000"},
            0.5,
            id="that of a group around it",
        ),
        pytest.param("0::/\n", {"cpu.max": "200000 100000"}, 2.0, id="a container's root"),
        pytest.param("0::/\n", {"cpu.max": "nonsense"}, float("inf"), id="damaged"),
        pytest.param(
            FIRST,
            {"cpu/service/cpu.cfs_quota_us": "300000", "cpu/service/cpu.cfs_period_us": "100000"},
            3.0,
            id="the first version",
        ),
        pytest.param(
            FIRST,
            {"cpu/service/cpu.cfs_quota_us": "-1", "cpu/service/cpu.cfs_period_us": "100000"},
            float("inf"),
            id="the first version, none",
        ),
    ],
)
def test_a_quota_of_control_groups_is_found(monkeypatch, tmp_path, own, files, expected):
    """Of every group around this process, in either version of them; the least one counts."""
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cores, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(cores, "GROUPS", tmp_path)
    assert cores.quota() == expected


@pytest.mark.parametrize(("quota", "threads"), [(0.2, 1), (1.0, 1), (1.5, 2), (2.0, 2), (9, 4)])
def test_threads_are_no_more_than_the_quota(monkeypatch, quota, threads):
    """A part of a core is one; four cores stay four where the quota is larger."""
    psutil = pytest.importorskip("psutil")
    monkeypatch.setattr(psutil, "cpu_count", lambda **_: 4)
    monkeypatch.setattr(cores, "allowed_cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(cores, "quota", lambda: quota)
    assert cores.physical_cores() == threads


def test_a_process_that_keeps_to_one_core_has_one_thread(monkeypatch):
    """What affinity takes away does not count."""
    monkeypatch.setattr(cores, "allowed_cores", lambda: [3])
    assert cores.physical_cores() == 1

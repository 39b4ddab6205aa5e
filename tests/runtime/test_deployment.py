"""Deployment files: their valid contents, and the placement of ranks."""

import os
import subprocess
from pathlib import Path

import pytest

from mindspore_rl.errors import ConfigError
from mindspore_rl.jobs import registry
from mindspore_rl.plan.deployment import Deployment, Host, load

HOSTS = "hosts:\n  - {name: a, address: 10.0.0.1, cores: 2, gpus: 1}\n"
TWO = HOSTS + "  - {name: b, address: 10.0.0.2, cores: 4, gpus: 2}\n"


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "hosts.yaml"
    file.write_text(text)
    return file


def test_ranks_fill_hosts_in_order(tmp_path):
    deployment = load(written(tmp_path, TWO + "workers: 3\npolicy: Central\n"))
    assert (deployment.workers, deployment.policy, deployment.launcher) == (3, "Central", "ssh")
    assert deployment.address == "10.0.0.1"
    assert deployment.place(5, "CPU") == ("a", "a", "b", "b", "b")
    assert deployment.place(3, "GPU") == ("a", "b", "b")
    assert deployment.host_file(("a", "a", "b")) == "10.0.0.1:2\n10.0.0.2:1\n"
    assert deployment.host_file(("a",)) == "10.0.0.1:1\n"


def test_slots_replace_cores_and_gpus():
    hosts = (Host("a", "10.0.0.1", cores=8, gpus=4, slots=1), Host("b", "10.0.0.2", slots=2))
    for device in ("CPU", "GPU"):
        assert Deployment(hosts).place(3, device) == ("a", "b", "b")


def test_one_host_is_this_machine(tmp_path):
    for deployment in (Deployment(), load(written(tmp_path, HOSTS))):
        assert deployment.place(9, "CPU") == ()
        assert deployment.address == "127.0.0.1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host: []", "unknown key host; did you mean hosts?"),
        ("hosts: [{name: a, adress: x}]", "unknown key adress; did you mean address?"),
        ("hosts: [{name: a}]", "Host has no default for address"),
        ("hosts: [{name: a, address: x, cores: 0}]", "host a: cores is 0, expected at least 1"),
        ("hosts: [{name: a, address: x, slots: two}]", "slots is 'two' (str), expected int"),
        ("hosts: [{name: a, address: x, gpus: -1}]", "gpus is -1"),
        ("hosts: [{name: a, address: 'x:2'}]", "host name='a', address='x:2'"),
        ("hosts: [{name: a, address: '-oProxyCommand=x'}]", "address='-oProxyCommand=x'; expected"),
        ('hosts: [{name: a, address: "x\\n-x"}]', r"address='x\n-x'; expected"),
        ("hosts: [{name: ../a, address: x}]", "host name='../a', address='x'; expected"),
        ("interface: -x", "interface is '-x', expected one such as eth0"),
        (f"launcher: {__file__}", "the path of a program that may be run"),
        ("hosts: [node1, node2]", "expected list of Host, for example `hosts: [{name: ...,"),
        (TWO.replace("0.2", "0.1"), "address 10.0.0.1 occurs 2 times"),
        ("launcher: shh", "launcher is 'shh', expected ssh, slurm, fork, or the path"),
    ],
)
def test_mistakes_name_the_file_and_what_was_expected(tmp_path, text, expected):
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert expected in str(caught.value)
    assert str(file) in str(caught.value)


def test_too_few_slots():
    deployment = Deployment((Host("a", "10.0.0.1", cores=2), Host("b", "10.0.0.2")))
    with pytest.raises(ConfigError, match=r"4 ranks.*take 3 on CPU \(a 2, b 1\)"):
        deployment.place(4, "CPU")


@pytest.mark.parametrize(
    ("name", "ranks", "device", "last"),
    [
        ("this_machine", 4, "CPU", None),
        ("two_hosts", 8, "CPU", "node2"),
        ("sixteen_hosts_of_four_gpus", 64, "GPU", "gpu16"),
    ],
)
def test_files_of_the_project(name, ranks, device, last):
    deployment = load(registry.find_deployment(name))
    assert deployment.place(ranks, device)[-1:] == ((last,) if last else ())


def test_unknown_name():
    with pytest.raises(ConfigError, match=r"did you mean two_hosts\?.*\.yaml file"):
        registry.find_deployment("two_host")


SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sh")), ids=lambda script: script.name)
def test_syntax_of_scripts(script):
    subprocess.run(["bash", "-n", script], check=True)


def test_slurm_script_makes_a_deployment_of_its_nodes(tmp_path):
    """With stubs for Slurm's `scontrol` and for `msrl`."""
    for path, text in {
        "scontrol": '[ "$*" = "show hostnames n[1-2]" ] && echo n1 && echo n2',
        ".venv/bin/msrl": 'echo "$@"',
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    done = subprocess.run(
        ["bash", SCRIPTS / "train_slurm.sh", "ppo", "seed=2"],
        check=True,
        capture_output=True,
        text=True,
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_JOB_ID": "7",
            "SLURM_NTASKS_PER_NODE": "3",
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "MSRL_INTERFACE": "ib0",
        },
    )
    file = tmp_path / "runs" / "hosts-7.yaml"
    assert done.stdout.split() == ["train", "ppo", "seed=2", "--deployment", str(file)]
    deployment = load(file)
    assert deployment.place(6, "CPU") == ("n1",) * 3 + ("n2",) * 3
    assert (deployment.launcher, deployment.interface) == ("slurm", "ib0")

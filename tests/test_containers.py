"""What the files for containers name is there: files, hosts, arguments."""

import re
from pathlib import Path

import pytest
import yaml

from mindspore_rl.cli.job_flags import add_options
from mindspore_rl.cli.parser import Parser
from mindspore_rl.jobs.job import GROUPS, Job, request
from mindspore_rl.plan import deployment

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "containers"


def test_images_copy_what_the_installation_needs():
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    copied = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}
    block = re.search(r"%files\n(.*?)\n\n", (FOLDER / "msrl.def").read_text(), re.DOTALL)[1]
    assert copied == {line.split()[0] for line in block.splitlines()}
    assert all((ROOT / name).exists() for name in copied)
    script = (ROOT / "setup.py").read_text()
    read = {*re.findall(r'HERE / "([^"]+)"', script), "LICENSE", "setup.py", "mindspore_rl"}
    assert copied >= read | {"algorithms", "distribution"}


def test_the_pods_are_the_hosts_and_the_command_is_a_job(tmp_path):
    hosts, job = yaml.safe_load_all((FOLDER / "mpijob.yaml").read_text())
    file = tmp_path / "hosts.yaml"
    file.write_text(hosts["data"]["hosts.yaml"])
    pods = job["spec"]["mpiReplicaSpecs"]
    name, count = job["metadata"]["name"], pods["Worker"]["replicas"]
    expected = [f"{name}-launcher.{name}", *(f"{name}-worker-{i}.{name}" for i in range(count))]
    found = deployment.load(file)
    assert [host.address for host in found.hosts] == expected
    assert {host.slots for host in found.hosts} == {job["spec"]["slotsPerWorker"]}
    launcher = pods["Launcher"]["template"]["spec"]["containers"][0]
    assert launcher["command"] == ["msrl"]
    command, *words = launcher["args"]
    assert command == "train"
    parser = Parser(prog="msrl train")
    add_options(parser, *GROUPS)
    arguments = parser.parse_args(words)
    mounts = {mount["name"]: mount["mountPath"] for mount in launcher["volumeMounts"]}
    assert Path(arguments.deployment).parent == Path(mounts["hosts"])
    assert Path(arguments.run_dir).is_relative_to(mounts["work"])
    arguments.deployment = str(file)
    asked = request(Job.of(arguments))
    assert asked.workers + 1 == sum(host.slots for host in found.hosts)  # and the learner
    assert asked.config.num_envs % asked.workers == 0


@pytest.mark.parametrize("part", ["Launcher", "Worker"])
def test_every_mounted_volume_is_there(part):
    _, job = yaml.safe_load_all((FOLDER / "mpijob.yaml").read_text())
    pod = job["spec"]["mpiReplicaSpecs"][part]["template"]["spec"]
    mounted = {mount["name"] for one in pod["containers"] for mount in one["volumeMounts"]}
    assert mounted <= {volume["name"] for volume in pod["volumes"]}

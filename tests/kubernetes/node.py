"""A node of this machine: containerd and a kubelet, with mounts and process ids apart from all others.

Pods have addresses of a bridge that only this machine reaches. When the node ends, nothing of it is left: its processes
end with their first one, its mounts with them; bridge, control groups and kernel settings are put right here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.containers.engine import call
from tests.kubernetes.certificates import Pair
from tests.kubernetes.cluster import NODE, Cluster, Object
from tests.kubernetes.images import PAUSE
from tests.kubernetes.programs import network_plugins, program
from tests.support.ports import free_ports
from tests.support.process import ManagedProcess
from tests.support.waiting import wait_until

ADDRESS = "10.213.17.1"
"""The node's, as its pods see it, and as this machine does."""
_BRIDGE = "tidemark0"
_SUBNET = "10.213.17.0/24"
_NEEDED = ("containerd", "ctr", "ip", "runc", "unshare")
_CGROUPS = Path("/sys/fs/cgroup")
_KERNEL = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "net/ipv4/ip_forward",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)
"""Settings that a kubelet or a bridge changes."""
# Sockets and logs whose paths nothing can change lie in file systems of the node's own.
_INIT = """\
set -eu
for folder in /run /var/lib /var/log; do mount -t tmpfs tmpfs "$folder"; done
mkdir /run/lock
"$1" --config "$2" &
until [ -S "$3" ]; do sleep 0.1; done
shift 3
"$@"
"""


def missing() -> str | None:
    """Name the programs and rights that a node needs and this process does not have; None without one."""
    if os.geteuid() != 0:
        return "a node takes root"
    absent = [name for name in _NEEDED if shutil.which(name) is None]
    return f"a node takes {', '.join(f'`{name}`' for name in absent)}" if absent else None


@contextmanager
def running_node(cluster: Cluster, folder: Path, images: Path, labels: dict[str, str]) -> Iterator[None]:
    """A node that is ready and has the images of an archive, until the end of the block."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    socket = folder / "containerd.sock"
    named = ",".join(f"{name}={value}" for name, value in labels.items())
    user = f"system:node:{NODE}"
    kubelet: list[str | Path] = [
        program("kubelet"),
        f"--config={_kubelet_configuration(cluster, folder, socket)}",
        f"--kubeconfig={cluster.kubeconfig(user, _pair(cluster, user, 'system:nodes'))}",
        f"--root-dir={folder / 'kubelet'}",
        f"--hostname-override={NODE}",
        f"--node-ip={ADDRESS}",
        f"--node-labels={named}",
    ]
    own_world = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    containerd = f"{shutil.which('containerd')}"
    init = ("sh", "-c", _INIT, "node", containerd, _containerd_configuration(folder, socket), socket)
    process = ManagedProcess("node", [*own_world, *init, *kubelet], log=folder / "node.log")
    with _machine_restored(), _killed(process):
        ctr = ("ctr", "--address", str(socket), "--namespace", "k8s.io")
        process.wait_until(lambda: _answers(*ctr, "version"))
        call(*ctr, "images", "import", str(images))
        process.wait_until(lambda: _is_ready(cluster))
        yield
    shutil.rmtree(folder / "containerd")


@contextmanager
def _killed(process: ManagedProcess) -> Iterator[None]:
    """Start the node; at the end kill its first process, which ignores SIGTERM, and with it all others."""
    process.start()
    try:
        yield
    finally:
        process.kill()


def _pair(cluster: Cluster, user: str, *groups: str) -> Pair:
    return cluster.authority.issue(user, *groups, address=ADDRESS)


def _answers(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _is_ready(cluster: Cluster) -> bool:
    for node in cluster.objects("nodes", "default"):
        return any(state["type"] == "Ready" and state["status"] == "True" for state in node["status"]["conditions"])
    return False


def _containerd_configuration(folder: Path, socket: Path) -> Path:
    """Write containerd's file, and that of the pods' network."""
    network = folder / "network"
    network.mkdir()
    leases = str(network / "leases")
    ipam = {"type": "host-local", "ranges": [[{"subnet": _SUBNET, "gateway": ADDRESS}]], "dataDir": leases}
    bridge = {"type": "bridge", "bridge": _BRIDGE, "isGateway": True, "ipam": ipam}
    configuration = {"cniVersion": "1.0.0", "name": "tests", "plugins": [bridge]}
    (network / "tests.conflist").write_text(json.dumps(configuration))
    path = folder / "containerd.toml"
    path.write_text(f"""\
version = 2
root = "{folder}/containerd"
state = "{folder}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]
[grpc]
address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
# A machine may not let even root lower a score.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{network_plugins()}"
conf_dir = "{network}"
""")
    return path


def _kubelet_configuration(cluster: Cluster, folder: Path, socket: Path) -> Path:
    serving = _pair(cluster, "kubelet")
    [port] = free_ports(1)
    configuration: Object = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ADDRESS,
        "port": port,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "x509": {"clientCAFile": str(cluster.authority.certificate)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "containerRuntimeEndpoint": f"unix://{socket}",
        "cgroupDriver": "cgroupfs",
        "enforceNodeAllocatable": ["none"],
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "podLogsDir": str(folder / "pods"),
        "volumePluginDir": str(folder / "volume-plugins"),
        # This machine's disk may be fuller than a node's, and images that are imported cannot be pulled again.
        "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%", "memory.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
    }
    path = folder / "kubelet.json"
    path.write_text(json.dumps(configuration))
    return path


@contextmanager
def _machine_restored() -> Iterator[None]:
    """A bridge that has the node's address; afterwards the machine is what it was."""
    settings = {path: path.read_text() for name in _KERNEL if (path := Path("/proc/sys", name)).exists()}
    call("ip", "link", "add", _BRIDGE, "type", "bridge")
    try:
        call("ip", "address", "add", f"{ADDRESS}/24", "dev", _BRIDGE)
        call("ip", "link", "set", _BRIDGE, "up")
        yield
    finally:
        call("ip", "link", "delete", _BRIDGE)
        for path, value in settings.items():
            path.write_text(value)
        wait_until(_groups_removed, what="the pods' control groups to be empty")


def _groups_removed() -> bool:
    """Remove the pods' control groups; False if processes are left in one of them."""
    tops = [*_CGROUPS.glob("kubepods"), *_CGROUPS.glob("*/kubepods")]
    groups = [group for top in tops for group in (top, *top.rglob("*/"))]
    try:
        for group in sorted(groups, reverse=True):
            group.rmdir()
    except OSError:
        return False
    return True

"""A control plane on free ports of 127.0.0.1: etcd, the API server, the controllers and, for a node, the scheduler.

All parts are processes of this machine with certificates of their own, and all that they write lies in one folder.
Pod Security admission is on, as it is by default. There is no node: :mod:`tests.kubernetes.node` has one.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kubernetes.certificates import Authority, Pair
from tests.kubernetes.programs import Program, build, program
from tests.support.ports import HOST, free_ports
from tests.support.process import ManagedProcess
from tests.support.waiting import wait_until

NODE = "node-1"
CHECKED = ("--server-side", "--dry-run=server", "--validate=strict", "--warnings-as-errors")
"""Options of ``kubectl apply``: the API server takes every field of an object and has nothing to warn of."""
Object = dict[str, Any]
_EACH_NAMESPACE_HAS = {"configmap/kube-root-ca.crt", "serviceaccount/default"}
_PASSING = {"events", "events.events.k8s.io", "bindings", "localsubjectaccessreviews.authorization.k8s.io"}
"""Kinds that say what happened, or that cannot be listed."""


class Refused(AssertionError):
    """A command failed; carries its standard error."""


@dataclass(frozen=True)
class Output:
    """What a command printed."""

    text: str
    warnings: str


class Cluster:
    """The command lines of a running control plane."""

    def __init__(self, folder: Path, authority: Authority, server: str) -> None:
        self._folder = folder
        self.authority = authority
        self._server = server
        self._kubeconfig = self.kubeconfig("admin", authority.issue("admin", "system:masters"))

    def kubeconfig(self, user: str, pair: Pair) -> Path:
        """Write the file with which a user reaches the API server, and return it."""
        cluster = {"server": self._server, "certificate-authority": str(self.authority.certificate)}
        keys = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": user, "user": keys}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": user}}],
            "current-context": "tests",
        }
        path = self._folder / f"{user.replace(':', '-')}.kubeconfig"
        path.write_text(json.dumps(content))
        return path

    def environment(self) -> dict[str, str]:
        """The variables with which ``helm`` and ``kubectl`` are found and reach this cluster."""
        path = f"{program('kubectl').parent}:{os.environ['PATH']}"
        home = {name: str(self._folder / "helm" / name) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME")}
        return os.environ | home | {"HELM_DATA_HOME": home["HELM_CACHE_HOME"], "PATH": path} | self._where()

    def _where(self) -> dict[str, str]:
        return {"KUBECONFIG": str(self._kubeconfig), "HOME": str(self._folder)}

    def run(self, *command: str | Path, given: str = "", cwd: Path | None = None) -> Output:
        """Run a command in :meth:`environment`; :class:`Refused` if it fails."""
        done = subprocess.run(
            command, input=given, cwd=cwd, env=self.environment(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Refused(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr}")
        return Output(done.stdout, done.stderr)

    def kubectl(self, *arguments: str | Path, given: str = "") -> Output:
        """Run ``kubectl``."""
        return self.run(program("kubectl"), *arguments, given=given)

    def helm(self, *arguments: str | Path, given: Mapping[str, Any] | None = None) -> Output:
        """Run ``helm``, with ``given`` for the values on its standard input."""
        return self.run(program("helm"), *arguments, given=json.dumps(given or {}))

    def apply(self, *given: Object, namespace: str = "default") -> None:
        """Create or change objects; a field that the API server does not know, or a warning, is an error."""
        options = ("--validate=strict", "--warnings-as-errors", "--namespace", namespace)
        self.kubectl("apply", *options, "--filename", "-", given=_stream(given))

    def check(self, *given: Object, namespace: str) -> None:
        """Have the API server admit objects without keeping them, as strictly as :meth:`apply`."""
        self.kubectl("apply", *CHECKED, "--namespace", namespace, "--filename", "-", given=_stream(given))

    def get(self, kind: str, name: str, namespace: str) -> Object:
        """An object."""
        content: Object = json.loads(self.kubectl("get", kind, name, "--namespace", namespace, "--output", "json").text)
        return content

    def objects(self, kind: str, namespace: str) -> list[Object]:
        """All objects of a kind in a namespace."""
        text = self.kubectl("get", kind, "--namespace", namespace, "--output", "json").text
        items: list[Object] = json.loads(text)["items"]
        return items

    def events(self, reason: str, namespace: str) -> list[str]:
        """The messages of a namespace's events with this reason."""
        return [event["message"] for event in self.objects("events", namespace) if event["reason"] == reason]

    def contents(self, namespace: str) -> set[str]:
        """Names of all objects of a namespace, apart from events and from objects that each namespace has."""
        kinds = self.kubectl("api-resources", "--namespaced", "--verbs=list", "--output=name").text.split()
        kept = ",".join(sorted(set(kinds) - _PASSING))
        names = self.kubectl("get", kept, "--namespace", namespace, "--output=name", "--ignore-not-found").text
        return set(names.split()) - _EACH_NAMESPACE_HAS

    def make_namespace(self, name: str, enforce: str, warn: str | None = None) -> None:
        """Make a namespace whose pods must fit the Pod Security Standard ``enforce``.

        Objects with pods that do not fit ``warn`` (default: the same) are taken with a warning.
        """
        prefix = "pod-security.kubernetes.io"
        labels = {f"{prefix}/enforce": enforce, f"{prefix}/warn": warn or enforce}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        wait_until(
            lambda: bool(self.objects("serviceaccounts", name)) and bool(self.objects("configmaps", name)),
            what=f"the default account of {name}",
        )


@contextmanager
def running_cluster(folder: Path, *, scheduler: bool) -> Iterator[Cluster]:
    """A control plane until the end of the block.

    Without a scheduler pods get no node, so they can be deleted although no kubelet confirms their end.
    """
    build()
    authority = Authority(folder / "certificates")
    secure, client, peer, controllers, scheduling = free_ports(5)
    etcd = f"http://{HOST}:{client}"
    serving = authority.issue("kube-apiserver")
    accounts = authority.issue("service-accounts")
    kubelets = authority.issue("kubelet-client", "system:masters")
    cluster = Cluster(folder, authority, f"https://{HOST}:{secure}")
    parts: dict[Program, list[str]] = {
        "etcd": [
            f"--data-dir={folder / 'etcd'}",
            *(f"--{option}-client-urls={etcd}" for option in ("listen", "advertise")),
            *(f"--{option}=http://{HOST}:{peer}" for option in ("listen-peer-urls", "initial-advertise-peer-urls")),
            f"--initial-cluster=default=http://{HOST}:{peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ],
        "kube-apiserver": [
            f"--etcd-servers={etcd}",
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
            f"--secure-port={secure}",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={authority.certificate}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={accounts.certificate}",
            f"--service-account-signing-key-file={accounts.key}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-certificate-authority={authority.certificate}",
            f"--kubelet-client-certificate={kubelets.certificate}",
            f"--kubelet-client-key={kubelets.key}",
        ],
        "kube-controller-manager": [
            f"--bind-address={HOST}",
            f"--secure-port={controllers}",
            f"--kubeconfig={_kubeconfig(cluster, 'kube-controller-manager')}",
            f"--service-account-private-key-file={accounts.key}",
            f"--root-ca-file={authority.certificate}",
            "--use-service-account-credentials",
            # A node without a kubelet is not called unreachable before the tests end.
            "--node-startup-grace-period=2h",
            "--leader-elect=false",
        ],
    }
    if scheduler:
        parts["kube-scheduler"] = [
            f"--bind-address={HOST}",
            f"--secure-port={scheduling}",
            f"--kubeconfig={_kubeconfig(cluster, 'kube-scheduler')}",
            "--leader-elect=false",
        ]
    with ExitStack() as stack:
        for name, arguments in parts.items():
            command: list[str | Path] = [program(name), *arguments]
            process = ManagedProcess(name, command, log=folder / f"{name}.log", cwd=folder)
            stack.callback(process.kill)  # nothing is kept, and a clean end takes half a minute
            process.start()
            if name == "kube-apiserver":
                process.wait_until(lambda: _succeeds(cluster, "get", "--raw", "/readyz"))
        wait_until(lambda: _succeeds(cluster, "get", "serviceaccount", "default"), what="the first service account")
        yield cluster


def _stream(objects: Iterable[Object]) -> str:
    """Objects one after the other: of a list, ``kubectl`` itself would check the fields, and not the server."""
    return "\n---\n".join(map(json.dumps, objects))


def _kubeconfig(cluster: Cluster, name: str) -> Path:
    user = f"system:{name}"
    return cluster.kubeconfig(user, cluster.authority.issue(user))


def _succeeds(cluster: Cluster, *arguments: str) -> bool:
    try:
        cluster.kubectl(*arguments)
    except Refused:
        return False
    return True

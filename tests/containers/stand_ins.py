"""Stand-ins for images whose registry cannot be reached: the same paths and users, from what this machine can get.

``stand-ins.yaml`` names them. The base of all is Debian by ``debootstrap``, with the certificates, the proxies and the
index of Python packages of this machine. Kafka's jars and SeaweedFS's program are those of the other tests.
"""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.containers.engine import FOLDER, Engine, call
from tests.support.jars import fetch
from tests.support.paths import ROOT, env_bin

OVERRIDE = Path(__file__).with_name("stand-ins.yaml")
_BASE = "localhost/stand-in/python:3.11"
_SUITE = "bookworm"
_PACKAGES = "ca-certificates,python3,python3-pip,python3-venv"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_CERTIFICATES = "etc/ssl/certs/of-the-engines-machine.crt"


def replaced(engine: Engine, compose: dict[str, Any]) -> dict[str, str]:
    """The stand-in of each image; none if all images are there or can be pulled."""
    base = re.findall(r"^ARG BASE=(\S+)", (ROOT / "docker" / "agent.Dockerfile").read_text(), re.MULTILINE)[0]
    services = yaml.safe_load(OVERRIDE.read_text())["services"]
    images = {base: _BASE}
    images |= {
        compose["services"][name]["image"]: changes["image"] for name, changes in services.items() if "image" in changes
    }
    if all(engine.can_pull(name) for name in images):
        return {}
    if not engine.has_image(_BASE):
        _make_base(engine)
    _lay_context()
    return images


def _lay_context() -> None:
    """Lay beside the stand-ins' build file what it copies."""
    folder = FOLDER / "images"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(Path(__file__).with_name("images"), folder)
    shutil.copytree(fetch("kafka-4.3.1"), folder / "kafka-jars")
    shutil.copy(env_bin("dev", "weed"), folder)


def _make_base(engine: Engine) -> None:
    """Import Debian as the image that the build files begin with in the place of Python's."""
    if shutil.which("debootstrap") is None:
        raise RuntimeError("no registry of images can be reached, and there is no `debootstrap` to make stand-ins with")
    with tempfile.TemporaryDirectory(dir=FOLDER) as work:
        root, archive = Path(work, "root"), Path(work, "root.tar")
        call("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _SUITE, root, *_mirror())
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        (root / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink()
        if certificates := ssl.get_default_verify_paths().cafile:
            shutil.copy(certificates, root / _CERTIFICATES)
        call("tar", "--create", "--file", archive, "--directory", root, ".")
        changes = [f'--change=ENV {name}="{value}"' for name, value in _environment(root).items()]
        engine.docker("import", *changes, "--change=CMD python", str(archive), _BASE)


def _mirror() -> list[str]:
    """Where this machine's apt gets the same release from; otherwise debootstrap knows."""
    if shutil.which("apt-get") is None:
        return []
    targets = call("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", f"Codename: {_SUITE}")
    return targets.splitlines()[:1]


def _environment(root: Path) -> dict[str, str]:
    """What commands of the build need to get packages as this machine does."""
    found = {name: os.environ[name] for name in _PROXIES if name in os.environ}
    asked: list[str | Path] = [env_bin("build", "pip"), "config", "get", "global.index-url"]
    configured = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if index := os.environ.get("UV_DEFAULT_INDEX") or configured:
        found |= {"PIP_INDEX_URL": index, "UV_DEFAULT_INDEX": index}
    if (root / _CERTIFICATES).exists():
        found |= {"PIP_CERT": f"/{_CERTIFICATES}", "SSL_CERT_FILE": f"/{_CERTIFICATES}"}
    return found | {"LANG": "C.UTF-8", "PATH": _PATH}

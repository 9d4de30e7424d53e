"""Certificates of private authorities."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def certificate_of_new_authority(directory: Path) -> tuple[Path, Path]:
    """A new authority's certificate, and a file with the key and the certificate that it gave to 127.0.0.1."""

    def openssl(*words: str) -> None:
        subprocess.run([shutil.which("openssl") or "openssl", *words], cwd=directory, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1")
    # Python 3.13 asks for what RFC 5280 asks for: what an authority's key may do, and which key signed a certificate.
    usage = "basicConstraints=CA:FALSE\nsubjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n"
    (directory / "usage").write_text(usage)
    signs = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    openssl("req", "-x509", *key, *signs, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *key[:-2], "-subj", "/CN=server", "-keyout", "server.key", "-out", "server.csr")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1", "-extfile", "usage")
    openssl("x509", "-req", "-in", "server.csr", *signed, "-out", "server.crt")
    both = directory / "server.pem"
    both.write_text((directory / "server.key").read_text() + (directory / "server.crt").read_text())
    return directory / "ca.pem", both

"""TLS and SASL: the errors of kafka-python and OpenSSL name no file and no setting, these do."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kafka.net.sasl import SASL_MECHANISMS

from tidemark.errors import ConfigError

_RULES: Final = {
    "ssl_cafile": "must have authorities' certificates, in PEM",
    "ssl_crlfile": "must be a list of revoked certificates, in PEM",
    "ssl_certfile": "must have a certificate in PEM, with the key here or in ssl_keyfile, which ssl_password opens",
}

_ALERT: Final = re.compile(r"alert ([a-z ]*certificate[a-z ]*|unknown ca)")
"""The ways in which a broker refuses a client's certificate, in OpenSSL's words."""


def check_security(settings: Mapping[str, Any]) -> None:
    """Check kafka-python's ``settings``.

    Raises:
        ConfigError: kafka-python has no such SASL mechanism, or a file of TLS is not there, or not what it must be.
    """
    protocol, mechanism = str(settings.get("security_protocol", "")), settings.get("sasl_mechanism")
    if protocol.startswith("SASL") and mechanism not in SASL_MECHANISMS:
        known = ", ".join(sorted(SASL_MECHANISMS))
        raise ConfigError("sasl_mechanism", [("", f"{mechanism!r} is not known; it must be one of {known}")])
    if not protocol.endswith("SSL"):
        return
    names = ("ssl_cafile", "ssl_crlfile", "ssl_keyfile", "ssl_certfile")
    files = {name: str(settings[name]) for name in names if settings.get(name)}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for name, file in files.items():
        try:
            Path(file).open("rb").close()
            if name == "ssl_certfile":
                # Without a password OpenSSL would ask for one at the terminal.
                context.load_cert_chain(file, files.get("ssl_keyfile"), settings.get("ssl_password") or "")
            elif name != "ssl_keyfile":
                context.load_verify_locations(file)
        except ssl.SSLError as error:
            raise ConfigError(name, [("", f"{file} {_RULES[name]}: {error.reason}")]) from error
        except OSError as error:
            raise ConfigError(name, [("", f"{file} cannot be read: {error.strerror}")]) from error


def tls_refusal(error: Exception, settings: Mapping[str, Any]) -> str | None:
    """The setting to correct, if TLS is why a connection failed with ``error``."""
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        file = settings["ssl_cafile"] or "of this system"
        return f"its certificate is not accepted: {text}; correct ssl_cafile ({file}), or that certificate"
    alert = _ALERT.search(text)
    if alert is None:
        return None
    file = settings["ssl_certfile"]
    if file is None:
        return f"it wants a certificate of this client: {alert[0]}; set ssl_certfile, and ssl_keyfile"
    return (
        f"it refuses the certificate in {file}: {alert[0]}; ssl_certfile must be signed by an authority that it trusts"
    )

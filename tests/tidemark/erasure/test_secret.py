from __future__ import annotations

import pytest

from tidemark.erasure.secret import VARIABLE, Secret, secrets, siphash
from tidemark.errors import ConfigError

LONG = "an-old-secret-of-forty-characters-or-so."
NEW = "a-new-secret-of-forty-characters-or-so.."


def test_siphash_is_that_of_its_authors() -> None:
    """Appendix A of the paper, and the first of the vectors of its authors' program."""
    key = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
    assert siphash(key, bytes(range(15))) == 0xA129CA6149BE45E5
    vectors = [0x726FDB47DD0E0E31, 0x74F839C593DC67FD, 0x0D6C8009D9A94F5A, 0x85676696D7FB7E2D]
    assert [siphash(key, bytes(range(size))) for size in range(4)] == vectors


def test_the_definitions_do_not_change() -> None:
    """Requests are read over years: these may never change."""
    secret = Secret(LONG)
    assert (secret.fingerprint, secret.digest(b"ada@example.com"), secret.probe(b"ada@example.com")) == (
        "a8e024aac41b8d1a",
        "9d4b9ddee309a4991bf6b02356dcb65f",
        4104484096,
    )


def test_all_that_a_request_has_of_a_value_depends_on_the_secret() -> None:
    one, other = Secret(LONG), Secret(NEW)
    assert one.fingerprint != other.fingerprint
    assert one.digest(b"ada") != other.digest(b"ada")
    assert one.probe(b"ada") != other.probe(b"ada")
    assert one.digest(b"ada") != one.digest(b"adb")
    assert one.probe(b"ada") != one.probe(b"adb")


def test_the_first_of_several_secrets_is_the_newest() -> None:
    found = secrets({VARIABLE: f"{NEW}\n {LONG}\t"})
    assert [secret.text for secret in found.values()] == [NEW, LONG]
    assert [*found] == [Secret(NEW).fingerprint, Secret(LONG).fingerprint]


@pytest.mark.parametrize("value", [None, "", " \n"])
def test_without_a_secret_nothing_goes(value: str | None) -> None:
    with pytest.raises(ConfigError, match=f"^{VARIABLE}: is not set: it needs a secret of at least 32 characters$"):
        secrets({} if value is None else {VARIABLE: value})


def test_a_short_secret_is_refused_and_not_shown() -> None:
    short = LONG[:31]
    with pytest.raises(ConfigError, match="secret 2 of 2 is too short: it needs at least 32 characters") as raised:
        secrets({VARIABLE: f"{LONG} {short}"})
    assert short not in str(raised.value)
    assert LONG not in str(raised.value)
    assert secrets({VARIABLE: LONG[:32]})


def test_a_secret_is_in_no_message() -> None:
    assert LONG not in repr(Secret(LONG))
    assert LONG not in f"{[Secret(LONG)]}"

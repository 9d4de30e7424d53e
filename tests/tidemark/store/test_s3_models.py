"""botocore's descriptions of the API, without documentation."""

from __future__ import annotations

from botocore.session import Session

from tidemark.store.s3_models import session


def test_only_the_documentation_is_left_out() -> None:
    """Everything else that botocore knows of S3 is there."""
    full = Session().get_component("data_loader").load_service_model("s3", "service-2")
    lean = session().get_component("data_loader").load_service_model("s3", "service-2")
    assert lean == _without_documentation(full)
    assert lean != full


def _without_documentation(value: object) -> object:
    if isinstance(value, dict):
        return {
            name: "" if name == "documentation" and isinstance(one, str) else _without_documentation(one)
            for name, one in value.items()
        }
    if isinstance(value, list):
        return [*map(_without_documentation, value)]
    return value

from __future__ import annotations

import errno
import os
from pathlib import Path

import obstore.exceptions
import pytest

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage.failures import local, missing, object_error

_ANSWER = (
    "Error performing PUT http://h/b/k in 3ms - Server returned non-2xx status code: {} : <Code>{}</Code>"
)


@pytest.mark.parametrize(
    ("kind", "text", "reason", "words"),
    [
        (
            "PermissionDeniedError",
            _ANSWER.format(403, "AccessDenied"),
            "STORAGE_DENIED",
            "AccessDenied (HTTP 403)",
        ),
        (
            "GenericError",
            "request failed for key k: x (code: AccessDenied)",
            "STORAGE_DENIED",
            "AccessDenied",
        ),
        ("UnauthenticatedError", "no", "STORAGE_DENIED", "refuses access"),
        (
            "GenericError",
            _ANSWER.format(404, "NoSuchBucket"),
            "STORAGE_DENIED",
            "bucket `b` does not exist at http://h",
        ),
        ("GenericError", _ANSWER.format(400, "AuthorizationHeaderMalformed"), "STORAGE_DENIED", "HTTP 400"),
        ("GenericError", _ANSWER.format(301, "PermanentRedirect"), "STORAGE_DENIED", "PermanentRedirect"),
        ("GenericError", "error: InvalidCertificate( UnknownIssuer )", "STORAGE_DENIED", "not trusted"),
        ("GenericError", _ANSWER.format(503, "SlowDown"), "STORAGE_UNAVAILABLE", "SlowDown (HTTP 503)"),
        ("GenericError", _ANSWER.format(429, "TooMany"), "STORAGE_UNAVAILABLE", "HTTP 429"),
        ("GenericError", "kind: ConnectionRefused", "STORAGE_UNAVAILABLE", "connection was refused"),
        ("GenericError", '"dns error", ...', "STORAGE_UNAVAILABLE", "name cannot be resolved"),
        ("GenericError", "kind: Timeout", "STORAGE_UNAVAILABLE", "did not answer in time"),
    ],
)
def test_what_clients_say_becomes_a_reason(kind: str, text: str, reason: str, words: str) -> None:
    error = getattr(obstore.exceptions, kind)(text)
    result = object_error(error, "s3://b/k", bucket="b", endpoint="http://h")
    assert result.reason is ExitReason[reason]
    assert words in result.message
    assert result.hint


def test_signatures_in_answers_do_not_reach_messages() -> None:
    text = _ANSWER.format(403, "SignatureDoesNotMatch") + "<AWSAccessKeyId>AKIA1</AWSAccessKeyId>"
    error = object_error(obstore.exceptions.BaseError(text), "s3://b/k", bucket="b", endpoint="http://h")
    assert "AKIA1" not in error.message + error.hint
    assert "SignatureDoesNotMatch" in error.message


def test_what_is_missing_depends_on_what_it_was_for() -> None:
    gone = FileNotFoundError("status code: 404 <Code>NoSuchKey</Code>")
    reasons = [
        object_error(gone, "s3://b/k", bucket="b", endpoint="h", purpose=purpose).reason
        for purpose in ("model", "data", None)
    ]
    assert reasons == [
        ExitReason.MODEL_UNAVAILABLE,
        ExitReason.INVALID_DATASET,
        ExitReason.STORAGE_UNAVAILABLE,
    ]
    assert "s3://b/k" in missing("s3://b/k", "data").message


@pytest.mark.parametrize(
    ("number", "reason", "words"),
    [
        (errno.ENOSPC, ExitReason.STORAGE_UNAVAILABLE, "no space is left"),
        (errno.EDQUOT, ExitReason.STORAGE_UNAVAILABLE, "quota"),
        (errno.EACCES, ExitReason.STORAGE_DENIED, "Permission denied"),
        (errno.EROFS, ExitReason.STORAGE_DENIED, "Read-only"),
        (errno.EIO, ExitReason.STORAGE_UNAVAILABLE, "Input/output error"),
    ],
)
def test_errors_of_the_file_system(tmp_path: Path, number: int, reason: ExitReason, words: str) -> None:
    path = tmp_path / "not" / "yet" / "there"
    with pytest.raises(RunError, match=words) as caught, local(path, "write"):
        raise OSError(number, os.strerror(number))
    assert caught.value.reason is reason
    assert str(path) in caught.value.message
    if words == "no space is left":
        assert "MiB free" in caught.value.message

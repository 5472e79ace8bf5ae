"""Providers at https addresses: a key and a prompt go only to a server whose certificate is valid for its name."""

from __future__ import annotations

import gc
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from app.domain.errors import ProviderDown
from app.domain.types import Delta

from .asking import OK, REQUEST, provider_at
from .server import serving


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of `localhost`, signed by nobody else, with its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "localhost.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(private + signed.public_bytes(Encoding.PEM))
    return path


@pytest.mark.parametrize(("host", "is_trusted"), [("localhost", True), ("localhost", False), ("127.0.0.1", True)])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_key_goes_only_to_a_server_whose_certificate_is_valid_for_its_name(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, host: str, *, is_trusted: bool, stream: bool
) -> None:
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    else:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    deltas: list[Delta] = []
    serving_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving_context.load_cert_chain(certificate)
    async with (
        serving(OK, encrypted=serving_context) as server,
        provider_at(f"https://{host}:{server.port}/v1") as adapter,
    ):
        if is_trusted and host == "localhost":
            for _ in range(2):
                answer = await adapter.complete(REQUEST, deltas.append if stream else None)
                assert answer.text == "Hello."
            assert (server.hits, server.connections) == (2, 1)
        else:
            with pytest.raises(ProviderDown, match="CertificateError"):
                await adapter.complete(REQUEST, deltas.append if stream else None)
            assert server.hits == 0


async def test_all_aliases_with_https_share_one_store_of_certificates() -> None:
    """Each takes 20 ms of the start of a process, and 0.8 MB."""

    def stores() -> int:
        return sum(isinstance(each, ssl.SSLContext) for each in gc.get_objects())

    async with provider_at("https://first.example/v1"):
        before = stores()
        async with provider_at("https://second.example/v1"):
            assert stores() == before > 0

"""Backends behind TLS: a certificate that cannot be trusted gets neither polls nor requests."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from selector.errors import FleetError, UpstreamError
from selector.files.fleet import LoadedFleet
from selector.files.trust import trust
from selector.router.probe import probe_fleet
from selector.router.upstream import Upstream
from tests.integration.router.fake_upstream import FakeUpstream, answering, streaming
from tests.integration.router.harness import CHAT, DONE, chat_stream, fleet_of, routed
from tests.integration.router.raw_client import request


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return path


def server(authority: trustme.CA, name: str = "localhost", *, expired: bool = False) -> ssl.SSLContext:
    end = datetime.now(UTC) - timedelta(days=1) if expired else None
    certificate = authority.issue_cert(name, not_after=end)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


def security(ca_file: Path | None) -> str:
    return "" if ca_file is None else f'[security]\nca_file = "{ca_file}"'


def fleet(upstream: FakeUpstream, ca_file: Path | None) -> LoadedFleet:
    return fleet_of([upstream.url], ["none"], tables_more=security(ca_file))


async def test_a_backend_of_a_trusted_authority_serves_whole_answers_and_streams(
    authority: trustme.CA, ca_file: Path
) -> None:
    async with (
        FakeUpstream(script=answering(200, b'{"n":1}'), tls=server(authority)) as upstream,
        routed(upstream, tables_more=security(ca_file)) as router,
    ):
        assert upstream.url.startswith("https://")
        async with request(router.url, body=CHAT) as answer:
            assert (answer.status, await answer.body()) == (200, b'{"n":1}')
        upstream.script = streaming(*chat_stream("a"))
        async with request(router.url, body={**CHAT, "stream": True}) as answer:
            assert [chunk async for chunk in answer.chunks()][-1] == DONE
        (probe,) = await probe_fleet(fleet(upstream, ca_file))
        assert probe.findings == () and probe.summary is not None


@pytest.mark.parametrize(
    ("trusts", "name", "expired", "why"),
    [
        ("nobody", "localhost", False, "unable to get local issuer certificate"),
        ("another", "localhost", False, "unable to get local issuer certificate"),
        ("it", "elsewhere.example", False, "Hostname mismatch"),
        ("it", "localhost", True, "certificate has expired"),
    ],
)
async def test_a_certificate_that_cannot_be_trusted_is_refused_with_the_reason(
    authority: trustme.CA, ca_file: Path, trusts: str, name: str, expired: bool, why: str
) -> None:
    if trusts == "another":
        trustme.CA().cert_pem.write_to_path(ca_file)
    trusted = None if trusts == "nobody" else ca_file
    async with FakeUpstream(script=answering(200, b"{}"), tls=server(authority, name, expired=expired)) as upstream:
        async with (
            routed(upstream, tables_more=security(trusted)) as router,
            request(router.url, body=CHAT) as answer,
        ):
            assert answer.status == 503
            message = (await answer.json())["message"]
        assert f"its certificate is refused ({why}" in message
        assert "security.ca_file names whom to trust" in message
        loaded = fleet(upstream, trusted)
        (probe,) = await probe_fleet(loaded)
        assert f"has a certificate that is refused ({why}" in probe.findings[0].problem
        # Nor would a request be sent, were there no polls.
        tls = trust(loaded.fleet, loaded.where)
        side = Upstream(loaded.fleet.backends[0], loaded.specs[0], loaded.fleet.router, loaded.where, tls)
        with pytest.raises(UpstreamError, match="its certificate is refused"):
            await side.post(b"/generate", [], b"{}", generating_s=0.0)
        await side.close()
        assert upstream.seen == []
        assert upstream.polls == 0


@pytest.mark.parametrize(("content", "complaint"), [(None, "cannot be read"), ("nonsense", "holds no certificate")])
async def test_authorities_that_cannot_be_read_are_told_before_anything_starts(
    tmp_path: Path, content: str | None, complaint: str
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    async with FakeUpstream() as upstream:
        with pytest.raises(FleetError, match=f"security.ca_file: .*ca.pem {complaint}"):
            async with routed(upstream, tables_more=security(path)):
                raise AssertionError("it started")
        assert upstream.polls == 0

"""The page about a profile: what it says follows the profile, its raw cells and the recording beside it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import Any

import pytest

from selector.files.profile import PrefillPass, Profile
from selector.profiler.cells import Cell, DecodeCell, DecodeRepeat, FailedStep, IdleCell, Metered, Origin
from selector.profiler.page.document import page, pictures
from selector.profiler.page.subject import Subject
from selector.profiler.page.tables import cells_table, drift_table, refused_table
from selector.profiler.page.trace import BoardSample

ORIGIN = Origin(host="gpu-host", weights="dummy", date="2026-01-02T03:04:05+00:00")
BATCHES = (1, 4, 16)
CONTEXTS = (600.0, 1200.0, 2400.0)


def cells(scale: float) -> list[dict[str, Any]]:
    return [
        {
            "batch": batch,
            "context_tokens": context,
            "step_ms": scale * (5.0 + 0.1 * batch + 1e-5 * batch * context),
            "step_j": scale * (2.0 + 0.05 * batch + 1e-5 * batch * context),
            "provenance": "sweep",
            "repeats": 3,
            "spread_ms_frac": 0.01,
            "spread_j_frac": 0.02,
        }
        for batch in BATCHES
        for context in CONTEXTS
    ]


def profile(**changes: Any) -> Profile:
    accept = {name: {"mean": 2.0, "provenance": "paper"} for name in ("code", "conversation")}
    accept |= {name: {"mean": mean, "provenance": "guess"} for name, mean in (("agentic", 2.0), ("romansh", 1.2))}
    data: dict[str, Any] = {
        "format": "drafter-selector/profile",
        "version": 1,
        "target": {
            "name": "M <8B>", "parameters": 8e9, "non_embedding_parameters": 7e9, "kv_bytes_per_token": 147_456,
            "provenance": "config",
        },
        "gpu": {
            "name": "H200", "power_limit_w": 700, "peak_tflops": 989, "bandwidth_tb_s": 4.8, "provenance": "config",
        },
        "idle": {"bare_w": 80, "served_w": 120, "provenance": "sweep"},
        "prefill": [{"prompt_tokens": 1000, "ms": 30, "j": 20, "provenance": "sweep"}],
        "arms": {
            "none": {"algorithm": "none", "verify_tokens": 1, "cells": cells(1.0)},
            "eagle3-k2": {"algorithm": "EAGLE3", "verify_tokens": 3, "cells": cells(1.5), "acceptance": accept},
        },
        "provenance": {
            "config": {"kind": "derived", "source": "config.json"},
            "sweep": {"kind": "measured", "source": "profile", "host": "gpu-host", "driver": "580.1",
                      "engine": "sglang 0.5.17", "weights": "dummy", "date": "2026-01-02T03:04:05+00:00"},
            "paper": {"kind": "published", "source": "a paper"},
            "guess": {"kind": "assumed", "source": "a guess"},
        },
    }  # fmt: skip
    return Profile.model_validate(data | changes)


def window(watts: float) -> Metered:
    return Metered(
        duration_s=6.0, energy_j=6.0 * watts, watts_mean=watts, counter_updates=60, update_interval_s=0.1,
        sm_mhz_mean=1980.0, temperature_c=45.0,
    )  # fmt: skip


def decode(batch: int, scale: float, **changes: Any) -> DecodeCell:
    repeat = DecodeRepeat(
        seed=1, step_ms=5.0 * scale, step_j=2.0 * scale, accept_length=1.0, context_tokens=600.0, steps=1000.0,
        window_s=5.5, energy=window(500.0),
    )  # fmt: skip
    data: dict[str, Any] = {"sweep_pass": "main", "method": "steady", "repeats": (repeat,)} | changes
    return DecodeCell(arm="none", batch=batch, prompt_tokens=512, origin=ORIGIN, **data)


def raw() -> list[Cell]:
    return [
        IdleCell(arm=None, energy=window(80.0), origin=ORIGIN),
        decode(1, 1.0),
        decode(4, 0.9),
        decode(1, 1.02, method="difference"),
        FailedStep(step="none batch 16 prompt 512", reason="GPU 0: the counter went back", origin=ORIGIN),
        decode(1, 1.03, sweep_pass="drift"),
        IdleCell(arm=None, sweep_pass="drift", energy=window(84.0), origin=ORIGIN),
    ]


def subject(**changes: Any) -> Subject:
    data: dict[str, Any] = {"name": "h200__m", "profile": profile(), "cells": raw()} | changes
    return Subject(**data)


class Outline(HTMLParser):
    """Ids, links and outside addresses of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.add(str(value))
            if name == "href":
                self.links.add(str(value))
            if name == "src" or tag in ("script", "link", "iframe"):
                self.loads.append(f"{tag} {value}")


def test_the_page_needs_nothing_from_elsewhere_and_says_what_users_wrote_as_text() -> None:
    html = page(subject(), [("command", "drafter-selector <b>")])
    outline = Outline()
    outline.feed(html)
    assert outline.loads == [] and {link.removeprefix("#") for link in outline.links} <= outline.ids
    assert "M &lt;8B&gt;" in html and "drafter-selector &lt;b&gt;" in html and "<b>" not in html
    assert "nan" not in re.findall(r'"[^"]*"', html) and "gpu-host" in html and "sglang 0.5.17" in html
    assert "dummy weights" in html


def test_every_picture_is_one_image_that_stands_alone_with_units_and_a_legend() -> None:
    drawn = {picture.name: picture for picture in pictures(subject())}
    assert list(drawn) == ["steps", "energy", "tbt", "break-even", "front", "roofline", "over-time"]
    for name, picture in drawn.items():
        image = picture.svg()
        assert ET.fromstring(image).tag == "{http://www.w3.org/2000/svg}svg"
        assert "nan" not in image and "M &lt;8B&gt;" in image
        assert name == "over-time" or (">eagle3-k2</text>" in image and ">none</text>" in image)
    assert "time between tokens, ms" in drawn["front"].svg() and "MHz" in drawn["over-time"].svg()


def test_text_types_that_accept_alike_share_a_panel_and_assumptions_are_starred() -> None:
    energy = next(picture for picture in pictures(subject()) if picture.name == "energy")
    assert [caption for caption, _ in energy.panels] == ["code, conversation, agentic*", "romansh*"]
    assert "assumptions" in energy.note


def test_figures_per_token_are_those_of_the_cells() -> None:
    drawn = {picture.name: picture.html() for picture in pictures(subject(stated_context_tokens=600.0))}
    ms, j = 1.5 * (5.4 + 4 * 600e-5), 1.5 * (2.2 + 4 * 600e-5)
    assert f"eagle3-k2, batch 4: {j / 4 / 2.0:.4g} at 2.00 tokens per step" in drawn["energy"]
    assert f"eagle3-k2, batch 4: {ms / 2.0:.4g} at 2.00 tokens per step" in drawn["tbt"]
    assert "eagle3-k2, batch 16: 1.500" in drawn["break-even"]
    assert f"eagle3-k2, batch 4: {j / 8.0:.4f} J per accepted token, TBT {ms / 2.0:.2f} ms" in drawn["front"]
    floor_ms = (2 * 7e9 + 4 * 147_456 * 600) / 4.8e12 * 1e3
    assert f"{floor_ms / ms:.0%} of the roofline" in drawn["roofline"]


def test_what_lies_outside_the_measured_cells_is_hollow() -> None:
    hollow = 'fill="#ffffff" stroke="#0072B2"'
    for context, expected in ((600.0, False), (100.0, True)):
        drawn = {picture.name: picture for picture in pictures(subject(stated_context_tokens=context))}
        for name in ("energy", "tbt", "break-even", "front"):
            assert (hollow in drawn[name].panels[0][1]) is expected, name


def test_the_targets_are_drawn_where_they_are_asked_for() -> None:
    front = next(picture for picture in pictures(subject(tbt_targets_ms=(7.5,))) if picture.name == "front")
    assert ">7.5 ms</text>" in front.panels[0][1] and ">25 ms</text>" not in front.panels[0][1]


def test_arms_are_compared_where_most_of_them_was_measured() -> None:
    assert subject().context_tokens == 600.0
    arms = profile().arms
    longer = [cell.model_copy(update={"context_tokens": cell.context_tokens + 900}) for cell in arms["none"].cells]
    moved = {**arms, "none": arms["none"].model_copy(update={"cells": tuple(longer)})}
    assert subject(profile=profile().model_copy(update={"arms": moved})).context_tokens == 1500.0


def test_without_ceilings_or_accept_lengths_the_page_says_so() -> None:
    arms = profile().arms
    plain = {**arms, "eagle3-k2": arms["eagle3-k2"].model_copy(update={"acceptance": {}})}
    gpu = profile().gpu.model_copy(update={"peak_tflops": None})
    bare = subject(profile=profile().model_copy(update={"arms": plain, "gpu": gpu}), cells=())
    assert [picture.name for picture in pictures(bare)] == ["steps", "break-even"]
    html = page(bare, [])
    assert "does not state the GPU&#x27;s ceilings" in html or "does not state the GPU's ceilings" in html
    assert "nothing can be said per token" in html and "No raw cells are beside this profile" in html
    assert "Neither a recording of the meter nor raw cells" in html


def test_what_was_refused_is_listed_with_its_reason() -> None:
    table = refused_table(subject())
    assert "none batch 16 prompt 512" in table and "the counter went back" in table
    clean = [cell for cell in raw() if not isinstance(cell, FailedStep)]
    assert "Nothing was refused" in refused_table(subject(cells=clean))


def test_drift_of_steps_and_of_the_bare_board_and_the_other_method_are_told() -> None:
    table = drift_table(subject())
    assert "+3.00%" in table and "+2.00%" in table and "+5.00%" in table
    assert "No cell was measured again" in drift_table(subject(cells=[decode(1, 1.0)]))


def test_checks_have_spread_left_out_errors_and_what_is_out_of_order() -> None:
    html = page(subject(), [])
    assert "1.00%" in html and "2.00%" in html
    assert "step_ms falls from 5.000 (batch 1, prompt 512) to 4.500 (batch 4, prompt 512)" in html


def test_cells_stand_beside_their_floors() -> None:
    html = cells_table(subject())
    floor_ms = (2 * 7e9 + 4 * 147_456 * 600) / 4.8e12 * 1e3
    ms, j = 1.5 * (5.4 + 4 * 600e-5), 1.5 * (2.2 + 4 * 600e-5)
    assert f"<td>{floor_ms / ms:.1%}</td><td>{80 * floor_ms / 1e3 / j:.1%}</td>" in html


def test_prefill_stands_beside_its_roofline() -> None:
    html = page(subject(), [])
    floor_ms = 2 * 7e9 * 1000 / 989e12 * 1e3
    assert f"<td>1,000</td><td>30.00</td><td>20.000</td><td>–</td><td>{floor_ms / 30:.1%}</td>" in html
    none = profile().arms["none"]
    least = PrefillPass(prompt_tokens=128, ms=5.5, j=1.5, provenance="sweep")
    arms = {**profile().arms, "none": none.model_copy(update={"prefill_pass": least})}
    assert "alone in a pass" in page(subject(profile=profile().model_copy(update={"arms": arms})), [])


def test_the_board_over_time_is_that_of_the_recording_where_there_is_one() -> None:
    windows = next(picture for picture in pictures(subject()) if picture.name == "over-time")
    assert "from 80 to 500" in windows.panels[0][1]
    samples = [
        BoardSample(start_s=0.0, end_s=30.0, power_w=90.0, sm_mhz=345.0, temperature_c=None),
        BoardSample(start_s=30.0, end_s=60.0, power_w=650.0, sm_mhz=1980.0, temperature_c=None),
    ]
    recorded = next(picture for picture in pictures(subject(samples=samples)) if picture.name == "over-time")
    assert [caption for caption, _ in recorded.panels] == ["Power", "SM clock"]
    assert "from 90 to 650" in recorded.panels[0][1]


@pytest.mark.parametrize("count", [1, 2])
def test_one_arm_or_one_batch_make_a_page_too(count: int) -> None:
    arms = dict(list(profile().arms.items())[:count])
    single = {name: arm.model_copy(update={"cells": arm.cells[:1]}) for name, arm in arms.items()}
    lone = profile().model_copy(update={"arms": single})
    assert "What a step costs" in page(subject(profile=lone, cells=()), [])

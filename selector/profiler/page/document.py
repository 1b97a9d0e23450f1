"""The page about a profile."""

from __future__ import annotations

from collections.abc import Sequence

from selector.files.profile import NO_DRAFTER
from selector.page.document import document, provenance_table
from selector.page.picture import Picture
from selector.page.svg import element, words
from selector.profiler.page.costs import break_even_picture, energy_picture, step_picture, tbt_picture
from selector.profiler.page.front import front_picture
from selector.profiler.page.overtime import overtime_picture
from selector.profiler.page.rooflines import roofline_picture
from selector.profiler.page.subject import Subject
from selector.profiler.page.tables import (
    accept_table,
    cells_table,
    checks_table,
    drift_table,
    prefill_table,
    refused_table,
    source_table,
)


def pictures(subject: Subject) -> list[Picture]:
    """Every picture that has something to show."""
    every = (
        step_picture(subject),
        energy_picture(subject),
        tbt_picture(subject),
        break_even_picture(subject),
        front_picture(subject),
        roofline_picture(subject),
        overtime_picture(subject),
    )
    return [picture for picture in every if picture.panels]


def page(subject: Subject, facts: Sequence[tuple[str, str]]) -> str:
    """The whole document; `facts` are rows of (name, value) about how it was made."""
    profile = subject.profile
    shown = {picture.name: picture for picture in pictures(subject)}
    roofline, overtime = roofline_picture(subject), overtime_picture(subject)
    again = element("h3", words("Measured again"))
    trust = checks_table(subject) + again + drift_table(subject)
    sections = [
        ("steps", "What a step costs", shown["steps"].html()),
        ("energy", "Energy per accepted token", _or_none(shown, "energy")),
        ("tbt", "Time between tokens", _or_none(shown, "tbt")),
        ("break-even", "Where an arm saves energy", _or_none(shown, "break-even")),
        ("front", "Energy against latency", _or_none(shown, "front")),
        ("roofline", "Under the roofline", roofline.html()),
        ("over-time", "Power and clocks over time", overtime.html()),
        ("checks", "How far the numbers can be trusted", trust),
        ("refused", "Refused windows and failed launches", refused_table(subject)),
        ("cells", "All cells", cells_table(subject)),
        ("prefill", "Prefill", prefill_table(subject)),
        ("accept", "Accept lengths", accept_table(subject)),
        ("provenance", "Provenance", provenance_table(facts) + source_table(subject)),
    ]
    title = f"{profile.target.name} on {profile.gpu.name}: what every drafter costs"
    return document(title, _summary(subject), sections)


def _or_none(shown: dict[str, Picture], name: str) -> str:
    if name in shown:
        return shown[name].html()
    return element("p", words("This profile has no accept lengths, so nothing can be said per token."))


def _summary(subject: Subject) -> list[str]:
    profile = subject.profile
    cells = sum(len(arm.cells) for arm in profile.arms.values())
    kinds = sorted({profile.provenance[cell.provenance].kind for arm in profile.arms.values() for cell in arm.cells})
    drafters = [name for name in profile.arms if name != NO_DRAFTER]
    told = [
        f"{len(profile.arms)} arms ({', '.join((NO_DRAFTER, *drafters))}), {cells} decode cells ({', '.join(kinds)}), "
        f"idle power {profile.idle.bare_w:g} W bare and {profile.idle.served_w:g} W with a server, "
        f"limit {profile.gpu.power_limit_w:g} W.",
    ]
    weights = {profile.provenance[cell.provenance].weights for arm in profile.arms.values() for cell in arm.cells}
    if "dummy" in weights:
        told.append("Step costs were measured with dummy weights of the real shapes and an imposed accept length.")
    return told

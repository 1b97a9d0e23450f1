"""Requests to `/generate` that hold several prompts: one request each, answered together as a list."""

from __future__ import annotations

from collections.abc import Mapping

from selector.emulator.refusals import Refusal


def bodies_of(body: Mapping[str, object]) -> list[Mapping[str, object]] | None:
    """A body for each prompt of a batch, be it a batch of one; `None` for a body of one prompt that is no list.

    Ids are numbered or taken one by one, sampling parameters shared or taken one by one, as SGLang does. Raises
    `Refusal` for lists of other lengths, and for a streamed batch.
    """
    name = "text" if body.get("text") is not None else "input_ids"
    prompts = body.get(name)
    if not isinstance(prompts, list) or not prompts or not all(isinstance(one, str | list) for one in prompts):
        return None
    if body.get("stream") is True:
        raise Refusal.of_value(f"The emulator streams one prompt per request, got {len(prompts)}.")
    own: list[dict[str, object]] = [{**body, name: prompt} for prompt in prompts]
    rid, sampling = body.get("rid"), body.get("sampling_params")
    if isinstance(rid, str) and len(prompts) > 1:
        rid = [f"{rid}_{number}" for number in range(len(prompts))]
    for field, values in (("rid", rid), ("sampling_params", sampling)):
        if isinstance(values, list):
            if len(values) != len(prompts):
                raise Refusal.of_value(f"{field} has {len(values)} entries for {len(prompts)} prompts.")
            for one, value in zip(own, values, strict=True):
                one[field] = value
    return list(own)

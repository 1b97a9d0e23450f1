"""Inside the engine: a plugin for SGLang that chooses the draft depth of every step by energy and TBT target.

    router ── custom_params: the request's target ──▶ SGLang ── batch ──▶ batchfacts ──▶ core.depthchoice ──▶ depth
                                                         └── accepted drafts of each pass ──▶ core.depthacceptance

`plugin` is what SGLang calls (entry point group `sglang.srt.plugins`), `interface` says whether this release is one
that the plugin knows, `depthpolicy` stands in for the engine's own choice. Nothing here imports SGLang before SGLang
calls, nor a library that SGLang does not bring, so that the package may be imported anywhere.
"""

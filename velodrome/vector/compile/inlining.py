"""Compiles functions that exist only inside others: typed and lowered, but not optimised or generated on their own.

Numba optimises every function with all that it calls and generates its machine code, before the caller does the same
with its own copy. For a rule of a hundred small functions that is most of the time of a first start (measured:
docs/decisions/0012-inlined-functions-are-compiled-once.md), and only the caller's copy ever runs.
"""

from __future__ import annotations

from typing import Any

from numba import _dynfunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, _LowerResult
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering


class InlinedLibrary(JITCodeLibrary):
    """Code to be linked into that of callers."""

    def _optimize_final_module(self) -> None:
        """Leave that to the caller, which sees everything together."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class InlinedLowering(NativeLowering):
    """Lowers a function into an InlinedLibrary, from which others call it."""

    _name = "velodrome_inlined_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower the function; its callers find it through a callable without machine code, which nobody may call."""
        state.library = InlinedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered, library = state["cr"], state.library
        described = lowered.fndesc
        handle = _dynfunc.make_function(described.lookup_module(), described.qualname, "", 0, lowered.env, (library,))
        state.targetctx.insert_user_function(handle, described, [library])
        state.reload_init.extend(library._reload_init)
        state["cr"] = _LowerResult(described, lowered.call_helper, cfunc=handle, env=lowered.env)
        return True


class InlinedCompiler(CompilerBase):
    """The usual pipeline with the last step replaced; for `njit(pipeline_class=…)`."""

    def define_pipelines(self) -> list[Any]:
        """Return Numba's pipeline for compiled code with the other lowering in it."""
        pipeline = DefaultPassBuilder.define_nopython_pipeline(self.state)
        pipeline.passes = [
            (InlinedLowering if step is NativeLowering else step, description) for step, description in pipeline.passes
        ]
        pipeline.finalize()
        return [pipeline]

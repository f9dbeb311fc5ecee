"""Run tests with kernels compiled for another processor, then compile the same kernels to Arm
assembly.

The processor is the one of NUMBA_CPU_NAME and NUMBA_CPU_FEATURES; the arguments are pytest's.
Prints a JSON object. The folder NUMBA_CACHE_DIR must be empty, because kernels from a cache have no
source to compile again.
"""

import gc
import json
import re
import sys

import pytest
from llvmlite import binding
from numba.core.codegen import CPUCodeLibrary
from numba.core.dispatcher import Dispatcher

ARM = ("aarch64-unknown-linux-gnu", "neoverse-n1")  # 128-bit vectors, as in Apple's processors
# Functions of the C library that stand for an instruction which the processor does not have, one
# call for each number.
LIBRARY_CALL = re.compile(
    r"\b(?:bl|callq?)\s+_?(fmaf?|rintf?|sqrtf?|expf?|__truncsfbf2|__extendbfsf2)\b"
)
OTHER_VECTORS = re.compile(r"\bzmm\d")  # 512 bits


def arm_assembly(machine: binding.TargetMachine, ir: str) -> str:
    module = binding.parse_assembly(ir)
    module.triple = ARM[0]
    module.data_layout = str(machine.target_data)
    return machine.emit_assembly(module)


def record_code() -> dict[CPUCodeLibrary, str]:
    """Return a dictionary that is filled with LLVM's code of each function before it is compiled
    for this processor.
    """
    code: dict[CPUCodeLibrary, str] = {}
    finalize = CPUCodeLibrary._finalize_final_module

    def recorded(library: CPUCodeLibrary) -> None:
        code[library] = str(library._final_module)
        # finalizing adds instructions of this processor; other libraries link the copy
        copy = library._final_module.clone()
        for function in copy.functions:
            if not function.is_declaration and function.linkage == binding.Linkage.external:
                function.linkage = "linkonce_odr"
        library._shared_module = copy
        finalize(library)

    CPUCodeLibrary._finalize_final_module = recorded
    return code


def kernels() -> list[Dispatcher]:
    # tests/conftest.py froze what was imported, and the collector does not list frozen objects
    gc.unfreeze()
    found = (value for value in gc.get_objects() if isinstance(value, Dispatcher))
    return sorted(
        (d for d in found if d.py_func.__module__.startswith("runnel.")),
        key=lambda d: d.py_func.__qualname__,
    )


def main() -> None:
    code = record_code()
    status = int(pytest.main(sys.argv[1:]))
    binding.initialize_all_targets()  # llvmlite's wheels include a compiler for Arm
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(ARM[0]).create_target_machine(cpu=ARM[1], opt=3)
    found: dict[str, list[str]] = {
        "kernels": [],
        "wide": [],
        "x86": [],
        "calls": [],
        "arm_calls": [],
    }
    narrow = arm = 0
    for kernel in kernels():
        for compiled in kernel.overloads.values():
            name = f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}"
            ir = code[compiled.library]
            own = compiled.library.get_asm_str()
            other = "" if "llvm.x86." in ir else arm_assembly(machine, ir)
            found["kernels"].append(name)
            found["wide"] += [name] * bool(OTHER_VECTORS.search(own))
            found["x86"] += [name] * ("llvm.x86." in ir)
            found["calls"] += [f"{name}: {call}" for call in sorted(set(LIBRARY_CALL.findall(own)))]
            found["arm_calls"] += [
                f"{name}: {call}" for call in sorted(set(LIBRARY_CALL.findall(other)))
            ]
            narrow += len(re.findall(r"\bvfm\w+\s.*ymm", own))
            arm += len(re.findall(r"\bfml[as]\s+v\d+\.4s", other))
    print(json.dumps({"status": status, "narrow": narrow, "arm": arm} | found))


if __name__ == "__main__":
    main()

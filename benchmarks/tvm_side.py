"""TVM's side of `benchmarks.tvm`: tunes a model with MetaSchedule and times it, on request.

Run by a Python that has the packages of the extra `bench-tvm`, which has nothing of nestling.
Requests and replies are lines of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import tvm
from tvm import relax
from tvm.relax.frontend import detach_params
from tvm.relax.frontend.onnx import from_onnx

# Its builder gives a candidate 30 s.  A worker takes 15 s to import TVM when it has a core for
# itself, so that workers that share one are killed and start again without an end.
psutil.cpu_count = lambda logical=True: int(sys.argv[1])


class Side:
    """One model at a time."""

    def tune(self, request: dict[str, Any]) -> dict[str, Any]:
        """Import, tune and compile a model, as TVM's documentation says for CPUs: channel-last,
        weights laid out beforehand, and trials for every task."""
        start = time.perf_counter()
        model = onnx.load(request["model"])
        target = tvm.target.Target({"kind": "llvm", "mcpu": request["cpu"], "num-cores": 1})
        mod = from_onnx(model, keep_params_in_input=True)
        mod, params = detach_params(mod)
        if request["nhwc"]:
            mod = tvm.transform.Sequential([
                relax.transform.DecomposeOpsForInference(),
                relax.transform.CanonicalizeBindings(),
                relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]}),
                relax.transform.Normalize(),
            ])(mod)  # fmt: skip
        work = Path(request["work_dir"])
        work.mkdir(parents=True, exist_ok=True)
        mod = relax.pipeline.static_shape_tuning_pipeline(
            total_trials=request["trials"],
            target=target,
            work_dir=str(work),
            cpu_weight_prepack=True,
            max_trials_per_task=request["per_task"],
        )(mod)
        with target:
            self.vm = relax.VirtualMachine(tvm.compile(mod, target=target), tvm.cpu())
        seconds = time.perf_counter() - start
        weights = self.vm["main_transform_params"](params["main"])
        self.arrays = [
            tvm.runtime.tensor(np.array(request["inputs"][name], np.float32).reshape(shape))
            for name, shape in request["shapes"].items()
        ] + list(weights)
        self.vm.set_input("main", *self.arrays)
        records = work / "database_tuning_record.json"
        trials = sum(1 for _ in records.open()) if records.is_file() else 0
        self.vm.invoke_stateful("main")
        out = self.vm.get_outputs("main")
        first = out if isinstance(out, tvm.runtime.Tensor) else out[0]
        return {
            "seconds": seconds, "trials": trials, "tvm": tvm.__version__,
            "output": first.numpy().ravel().tolist(),
        }  # fmt: skip

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the seconds of each of so many runs."""
        run, result = self.vm.module["invoke_stateful"], []
        for _ in range(request["runs"]):
            start = time.perf_counter_ns()
            run("main")
            result.append((time.perf_counter_ns() - start) * 1e-9)
        return {"seconds": result}


def main() -> None:
    """Answer requests until the input ends."""
    side, out = Side(), sys.stdout
    sys.stdout = sys.stderr  # where TVM prints its tables
    for line in sys.stdin:
        request = json.loads(line)
        out.write(json.dumps(getattr(side, request["op"])(request)) + "\n")
        out.flush()


if __name__ == "__main__":
    main()

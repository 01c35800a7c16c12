"""Files that hold one network each, for use without this package."""

import gc
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError

Format = Literal["torch", "onnx"]
SUFFIXES: dict[Format, str] = {"torch": ".pt2", "onnx": ".onnx"}
NEEDED = {"onnx": "writes ONNX files", "onnxscript": "translates to ONNX", "onnxruntime": "checks and quantises them"}
METADATA = "metadata.json"

Run = Callable[[Tensor], Tensor]


def check_packages() -> None:
    """Checks that what ONNX files need is installed.

    Raises:
        UsageError: if not, with all that is missing.
    """
    missing = [f"{name} ({what})" for name, what in NEEDED.items() if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"ONNX files need {', '.join(missing)}; install them with pip install 'routing-lightning[export]', or "
            "export with --format torch, which needs nothing more."
        )


def save(
    network: nn.Module, example: Tensor, path: Path, metadata: dict[str, Any], kind: Format, int8: bool = False
) -> None:
    """Writes a network as a file.

    Args:
        network: images (N, ...) -> logits (N, K), in evaluation mode.
        example: images (2, ...) such as those to come; their number is free in the file.
        path: where to.
        metadata: what goes into the file beside the network; plain values.
        kind: ``"torch"``: a ``torch.export`` archive; ``"onnx"``.
        int8: whether the weights are stored as 8-bit integers, by ONNX Runtime's dynamic quantisation; ONNX only.

    Raises:
        UsageError: if packages are missing, the network cannot be written as such a file, or ``int8`` is asked of
            another kind.
    """
    if int8 and kind != "onnx":
        raise UsageError("int8 needs the format onnx: its quantiser is ONNX Runtime's; give --format onnx.")
    if kind == "onnx":
        check_packages()
    try:
        _write(network, example, path, metadata, kind, int8)
    finally:
        # Exporters leave subclasses with the names of ours, which short names in configs would then mean, too.
        gc.collect()


def _write(network: nn.Module, example: Tensor, path: Path, metadata: dict[str, Any], kind: Format, int8: bool) -> None:
    with torch.no_grad(), _quiet():
        # What fails here may raise anything: whatever the exporters stumble over.
        try:
            program = _exported(network, example)
        except Exception as error:
            raise UsageError(
                f"the network cannot be exported ({_short(error)}); its code must be tensor operations only, without "
                "choices by their values, and with x.shape[0] for len(x)."
            ) from error
        try:
            (_save_torch if kind == "torch" else _save_onnx)(program, path, metadata)
            if int8:
                _quantise(path)
        except OSError:
            raise
        except Exception as error:
            path.unlink(missing_ok=True)
            raise UsageError(
                f"the network cannot be written as {kind} ({_short(error)}); try newer versions of onnx, "
                "onnxscript and onnxruntime, or the other format."
            ) from error


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _exported(network: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    return torch.export.export(network, (example,), dynamic_shapes=({0: batch},), strict=False)


def _save_torch(program: torch.export.ExportedProgram, path: Path, metadata: dict[str, Any]) -> None:
    torch.export.save(program, path, extra_files={METADATA: json.dumps(metadata)})


def _save_onnx(program: torch.export.ExportedProgram, path: Path, metadata: dict[str, Any]) -> None:
    import onnx

    made = torch.onnx.export(
        program,
        input_names=["images"],
        output_names=[metadata.get("output", {}).get("name", "logits")],
        dynamo=True,
        verbose=False,
    )
    assert made is not None
    model = made.model_proto
    onnx.helper.set_model_props(model, {key: json.dumps(value) for key, value in metadata.items()})
    onnx.save(model, path)


def _quantise(path: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    # Notes of shapes in between, which go stale when the quantiser turns weights round, and stop older versions.
    del model.graph.value_info[:]
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / path.name
        quantize_dynamic(model, made, weight_type=QuantType.QUInt8)  # convolutions of signed weights run on few
        path.write_bytes(made.read_bytes())


def load(path: Path) -> tuple[Run, dict[str, Any]]:
    """Reads a file as others do: a function from images to logits, and the metadata.

    Args:
        path: a file that :func:`save` wrote.
    """
    if path.suffix == SUFFIXES["torch"]:
        extra = {METADATA: ""}
        module = torch.export.load(path, extra_files=extra).module()

        @torch.no_grad()
        def run(images: Tensor) -> Tensor:
            logits: Tensor = module(images)
            return logits

        return run, json.loads(extra[METADATA])
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    found = session.get_modelmeta().custom_metadata_map
    return (
        lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0]),
        {key: json.loads(value) for key, value in found.items() if key in KEYS},
    )


KEYS = ("task", "classes", "input", "output", "route", "source", "software")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the exporters' talk about themselves from the user."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "root")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)

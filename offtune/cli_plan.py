"""The command that looks ahead: `plan`. `cli.py` registers it.

Covered: arguments, the calls, where the answer goes. Heavy imports happen inside.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offtune.cli_options import DEFAULT_STORAGE, AsJson, Storage
from offtune.cli_output import print_json, print_page
from offtune.errors import EXIT_NOTHING_FITS

if TYPE_CHECKING:
    from offtune.plan import Plan
    from offtune.plan_request import Request

Model = Annotated[
    str, typer.Option(help="A preset, a Hugging Face config.json (file or folder), or a hub id.")
]
Hardware = Annotated[
    str | None,
    typer.Option(help="A hardware profile, by name or file; default: this machine, as it was calibrated."),
]
Budget = Annotated[
    str | None, typer.Option(help="Device memory a rank may use: 40GB or 40GiB. Default: the card's.")
]
HostBudget = Annotated[
    str | None, typer.Option(help="Host memory of a node. Default: 90 % of what the profile has.")
]
GlobalBatch = Annotated[
    int | None, typer.Option(help="Samples per optimizer step over all ranks. [32 a GPU]")
]
Checkpointing = Annotated[
    bool,
    typer.Option(
        "--activation-checkpointing/--no-activation-checkpointing",
        help="Recompute activations in backward.",
    ),
]
NvmePath = Annotated[str | None, typer.Option(help="The same, and the folder there, for the exported file.")]
Tokens = Annotated[str | None, typer.Option(help="Also say how long so many tokens take: 300B, 3e11.")]
Price = Annotated[float | None, typer.Option(help="And what they cost, in any currency.")]
ExportTo = Annotated[
    Path | None, typer.Option("--export", help="Write the best predicted ds_config to this file.")
]


def plan(
    model: Model,
    hardware: Hardware = None,
    gpus: Annotated[int, typer.Option(help="GPUs, one rank each.")] = 1,
    budget: Budget = None,
    host_budget: HostBudget = None,
    seq_len: Annotated[int | None, typer.Option(help="Tokens per sample. [1024]")] = None,
    global_batch: GlobalBatch = None,
    precision: Annotated[str, typer.Option(help="bf16, fp16 or fp32.")] = "bf16",
    activation_checkpointing: Checkpointing = False,
    nvme: Annotated[bool, typer.Option("--nvme", help="Consider offload to NVMe.")] = False,
    nvme_path: NvmePath = None,
    tokens: Tokens = None,
    price_per_gpu_hour: Price = None,
    export_to: ExportTo = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Predict whether a model fits hardware that need not be here, how, and how fast; nothing is run.

    Example: offtune plan --model llama-13b --hardware a100-40gb --gpus 4 --budget 40GB
    """
    from offtune.export import check_target
    from offtune.plan import make_plan
    from offtune.plan_request import PlanOptions, priced, resolve

    count, price = priced(tokens, price_per_gpu_hour)
    if export_to is not None:
        check_target(export_to, force)
    request = resolve(PlanOptions(
        model=model, hardware=hardware, gpus=gpus, budget=budget, host_budget=host_budget, seq_len=seq_len,
        global_batch=global_batch, precision=precision, activation_checkpointing=activation_checkpointing,
        nvme=nvme, nvme_path=nvme_path, storage=storage,
    ))  # fmt: skip
    found = make_plan(request, count, price)
    _show(found, request, as_json)
    if found.best is None:
        raise typer.Exit(EXIT_NOTHING_FITS)
    if export_to is not None:
        _write(found.best.ds_config, request.nvme_path, export_to, force)


def _show(found: Plan, request: Request, as_json: bool) -> None:
    from offtune.plan_ladder import climb, faster
    from offtune.report.plan_document import plan_document
    from offtune.report.plan_page import plan_page

    ladder = () if found.choices else climb(request, found.nearest)
    gain = faster(request, found.choices[0] if found.choices else None)
    if as_json:
        print_json(plan_document(found, ladder, gain))
    else:
        print_page(plan_page(found, ladder, gain))


def _write(ds_config: dict[str, Any], nvme_path: str | None, path: Path, force: bool) -> None:
    from offtune.export import deepspeed_text, portable, write_export

    write_export(deepspeed_text(portable(ds_config, nvme_path)), path, force)
    typer.echo(f"Wrote {path}: predicted, not measured.", err=True)

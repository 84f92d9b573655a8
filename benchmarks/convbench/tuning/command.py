"""`python -m benchmarks fit`: fits the costs of families, and of the device, to the rows of `sample`."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from tabulate import tabulate
from tqdm import tqdm

from convbench import cases, machine, selection
from convbench.rows import RowFile, grouped
from convbench.tuning import data_files, report
from convbench.tuning.fit import fit
from convbench.tuning.predictions import LAYER, Costs, Measured, layer_of, log_seconds, measured, trial
from jaxconv.planner.devices import COSTS, MODELS, OWN_COSTS, Device
from jaxconv.planner.families import FAMILIES


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    samples = RowFile.load(options.samples)
    gpu = samples.machine["device"]
    selection.refuse_unknown([gpu], MODELS)
    device = MODELS[gpu]
    if options.write and gpu != data_files.owner(device.costs):
        raise SystemExit(f"the costs {device.costs} are of {data_files.owner(device.costs)}, the rows of {gpu}")
    rows = measured(samples.rows, cases.load(options.case_file), device)
    print(f"{len(rows)} of {len(samples.rows)} rows have a time, and are of kernels that the planner has")
    if options.device:
        _check_families(rows, device, options)
    families = options.families or list(dict.fromkeys(each.row["family"] for each in rows))
    selection.refuse_unknown(families, {each.row["family"] for each in rows})
    sections = [OWN_COSTS, *families] if options.device else families
    fitted = {section: COSTS[device.costs][section] for section in sections}
    if not options.keep:
        near = rows if options.within is None else _near_the_fastest(rows, options.within)
        fitted = fit(sections, near, device) if options.device else _each(families, near, device)
    with trial(device, fitted) as changed:
        after = log_seconds(rows, changed)
    print(f"{_numbers(COSTS[device.costs], fitted)}\n\n{report.text(rows, log_seconds(rows, device), after)}")
    if options.write:
        data_files.write(device.costs, fitted, _records(sections, report.qualities(rows, after)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks fit", description="Fits the planner's costs of CUDA families to measured rows."
    )
    parser.add_argument("samples", type=Path, help="file that `sample` wrote")
    selection.add_case_file(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--families", **selection.SEVERAL, help="default: all that have rows")
    what.add_argument("--device", action="store_true", help="all families together, and the numbers that they share")
    parser.add_argument(
        "--within",
        type=float,
        metavar="FACTOR",
        help="fit to kernels that take at most so many times the fastest of their layer and pass; default: to all",
    )
    parser.add_argument("--keep", action="store_true", help="change no number: how good they are for these rows")
    parser.add_argument("--write", action="store_true", help="keep the numbers in the data file of the GPU")
    return parser


def _check_families(rows: Sequence[Measured], device: Device, options: argparse.Namespace) -> None:
    """Warns of families that run on the device and have no rows: its numbers would be fitted to the others alone.

    Raises:
      SystemExit: these numbers would be kept.
    """
    found = {each.row["family"] for each in rows}
    missing = [name for name in FAMILIES["cuda"] if name not in found and (device.wgmma or name != "wgmma")]
    names = " ".join(missing)
    what = f"no rows of families that share the device's numbers: {names}"
    if missing and options.write:
        how = f"python -m benchmarks sample --out {options.samples} --families {names}"
        raise SystemExit(f"{what}. To write, add such rows, of layers that these families take: {how}")
    if missing:
        print(f"warning: {what}")


def _near_the_fastest(rows: Sequence[Measured], factor: float) -> list[Measured]:
    """The planner chooses among these: how slow the others are matters less."""
    layers = grouped((each.row for each in rows), *LAYER)
    fastest = {layer: min(row["us"] for row in of_layer) for layer, of_layer in layers.items()}
    return [each for each in rows if each.row["us"] <= factor * fastest[layer_of(each.row)]]


def _each(families: Sequence[str], rows: Sequence[Measured], device: Device) -> dict[str, Costs]:
    """The numbers of families that are fitted alone."""
    of = lambda family: [each for each in rows if each.row["family"] == family]
    return {family: fit([family], of(family), device)[family] for family in tqdm(families, unit="family")}


def _records(sections: Sequence[str], qualities: Mapping[tuple[str, str], report.Quality]) -> dict[str, dict]:
    """When each section was fitted, and how well, by pass. The device's is of all families."""
    date = machine.origin(commit=None)["date"]
    rows_of = {section: report.ALL if section == OWN_COSTS else section for section in sections}
    passes = lambda family: {which: of._asdict() for (name, which), of in qualities.items() if name == family}
    return {section: {"date": date, "passes": passes(family)} for section, family in rows_of.items()}


def _numbers(before: Mapping[str, Costs], after: Mapping[str, Costs]) -> str:
    """The numbers that have moved."""
    lines = [
        (section, name, before[section][name], number)
        for section, numbers in after.items()
        for name, number in numbers.items()
        if number != before[section][name]
    ]
    return tabulate(lines, ("of", "number", "before", "after"), floatfmt=".3g")

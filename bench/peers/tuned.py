"""Starts a PyTorch benchmark in the environment in which PyTorch is fastest on a CPU.

What counts is read when a process starts, so the script runs itself again, once.

malloc  The memory of a step is allocated anew each time; an allocator that hands it back to the
        system pays a page fault for every 4 KiB of it. jemalloc without decay, or glibc set never
        to trim nor mmap, keep it, and both ask for 2 MiB pages, as THP_MEM_ALLOC_ENABLE has PyTorch
        do. auto: jemalloc (libjemalloc2) where it is installed, else glibc. plain: as installed.
mkl     PyTorch's f32 products are MKL's, and MKL takes its AVX2 kernels on processors that are not
        Intel's. auto: where such a processor has AVX-512, preload a one-line library that has MKL
        take the AVX-512 kernels (needs cc); on Zen 5 that makes products twice as fast. native: as
        installed.

Measure on an idle machine: the OpenMP that PyTorch ships waits by spinning, and with another
process on one of its cores a step takes many times as long.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

MALLOC = ("auto", "jemalloc", "tcmalloc", "glibc", "plain")
MKL = ("auto", "native")
MARK = "TORCH_PEER_TUNED"


def add_options(parser):
    """Adds --malloc and --mkl."""
    parser.add_argument("--malloc", choices=MALLOC, default="auto")
    parser.add_argument("--mkl", choices=MKL, default="auto")


def malloc_library(name):
    for folder in ("usr/lib", "usr/lib64", "usr/lib/*-linux-gnu", "usr/local/lib"):
        for path in sorted(pathlib.Path("/").glob(f"{folder}/lib{name}*.so.[24]")):
            return str(path)
    return None


def mkl_library(folder):
    """Builds the library that opens MKL's AVX-512 kernels; None where it would not help."""
    info = pathlib.Path("/proc/cpuinfo").read_text()
    if "GenuineIntel" in info or "avx512f" not in info or not shutil.which("cc"):
        return None
    source, library = pathlib.Path(folder, "mkl.c"), pathlib.Path(folder, "mkl.so")
    source.write_text("int mkl_serv_intel_cpu_true(void) { return 1; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


def restart(threads, malloc, mkl):
    """First call: runs this script tuned, and ends with its status.

    In the process that it started: returns what is in force, {"malloc": ..., "mkl": ...}.
    """
    if MARK in os.environ:
        return json.loads(os.environ[MARK])
    if malloc == "auto":
        malloc = "jemalloc" if malloc_library("jemalloc") else "glibc"
    preload = [os.environ.get("LD_PRELOAD")]
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
    if malloc != "plain":
        env["THP_MEM_ALLOC_ENABLE"] = "1"
    if malloc in ("jemalloc", "tcmalloc"):
        preload.append(malloc_library(malloc))
        if not preload[-1]:
            sys.exit(f"--malloc {malloc}: lib{malloc} is not on this machine")
    if malloc == "jemalloc":
        env["MALLOC_CONF"] = ("thp:always,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1,"
                              "oversize_threshold:0")
    if malloc == "glibc":
        env["GLIBC_TUNABLES"] = ("glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:"
                                 "glibc.malloc.trim_threshold=68719476736:"
                                 "glibc.malloc.top_pad=67108864")
    with tempfile.TemporaryDirectory() as folder:
        library = mkl_library(folder) if mkl == "auto" else None
        preload.append(library)
        env["LD_PRELOAD"] = " ".join(filter(None, preload))
        env[MARK] = json.dumps({"malloc": malloc, "mkl": "avx512" if library else "native"})
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=env).returncode)

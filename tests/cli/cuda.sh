#!/bin/sh
# The sample BERT on GPUs: sh tests/cli/cuda.sh PROGRAM
#
# PROGRAM is built with CUDA and NCCL, or with their emulation. Steps on a device against the
# CPU's; ranks with one device each against one rank with as many micro-batches, bit by bit; and
# the messages of ranks that cannot find one another. Works in a folder whose name has a space.
set -u
export LC_ALL=C

bert=${1:-build/cuda/bert}
golden=tests/golden/bert
. tests/cli/cli.sh

# trains TO OPTIONS...: three steps; their losses go to TO.csv, the parameters to TO.
trains() {
    to=$1
    shift
    ends 0 "$bert" pretrain --model $golden/config.json --init $golden/init.safetensors --precision f32 \
        --batch-file $golden/batch.safetensors --steps 3 --schedule constant --warmup 0 \
        --dropout 0.1 --quiet --log "$work/$to.csv" --dump "$work/$to" "$@"
}

# near: the losses of both runs, of about 6, differ by less than 1e-5.
near() {
    paste -d, "$work/$1.csv" "$work/$2.csv" | awk -F, '
        NR == 1 { for (i = 1; i <= NF; i++) if ($i == "loss") at[++n] = i; next }
        { d = $at[1] - $at[2]; if (d < 0) d = -d; if (!(d < 1e-5) || !($at[1] > 1)) bad = 1 }
        END { exit bad || n != 2 || NR != 4 }'
}

on_cuda() { trains cpu && trains cuda --device cuda && near cpu cuda; }
check 'the same losses on the CPU and on a device' on_cuda

parts() { trains parts --device cuda --micro-batches 2; }
check 'a batch in two parts' parts
for zero in 0 3; do
    ranks() {
        trains ranks --device cuda --ranks 2 --zero "$zero" --prefetch 100000 &&
            cmp "$work/parts" "$work/ranks"
    }
    check "two ranks, stage $zero: the same bits" ranks
done
shared() {
    trains saved --device cuda --ranks 2 --zero 3 --save "$work/saved ranks" &&
        trains loaded --load "$work/saved ranks" --steps 4
}
check 'a checkpoint of two ranks with GPUs goes on on the CPU' shared

offloaded() { # to what the bits are equal; OPTIONS of offload...
    as=$1
    shift
    trains offloaded --device cuda --prefetch 100000 "$@" && cmp "$work/$as" "$work/offloaded"
}
check 'parameters and activations in host memory: the same bits' offloaded parts \
    --ranks 2 --zero 3 --offload parameters=host,activations=host
mkdir "$work/disk"
unclipped() { trains unclipped --device cuda --clip 0; }
check 'without clipping' unclipped
check 'all in host memory and on a disk: the same bits' offloaded unclipped --clip 0 \
    --offload optimizer=disk,parameters=disk,gradients=host,activations=disk --offload-dir "$work/disk"
fitted() {
    trains fitted --device cuda --memory 2M && grep -q '^within 2097152 bytes: .*=host' "$work/out"
}
check 'what leaves the device is chosen' fitted

# Ranks that share layers and sequences, and stages, against one device with as many sections.
export EMULATED_DEVICES=8
sections() {
    trains "$@" --sections tensor=2,context=2 --context-kind gather --micro-batches 2 --sum micro
}
one_device() { sections sections --device cuda && sections 'sections of the CPU' && near sections 'sections of the CPU'; }
check 'sections of sums' one_device
axes() { sections axes --device cuda "$@" && cmp "$work/sections" "$work/axes"; }
for how in '2 --tensor 2' '2 --context 2' '2 --pipe 2 --pipe-schedule zb-h1'; do
    # shellcheck disable=SC2086
    check "ranks ${how%% --pipe-*}: the same bits" axes --ranks $how
done
case $bert in
*emulated*)
    check 'all axes: the same bits' axes --ranks 8 --tensor 2 --context 2 --pipe 2 --zero 3 --prefetch 100000
    small() {
        axes --ranks 8 --tensor 2 --context 2 --pipe 2 --memory 900K &&
            grep -q '^within 921600 bytes: .*=host' "$work/out"
    }
    check 'all axes within a limit: the same bits' small
    ;;
esac

batches="--model $golden/config.json --batch-file $golden/batch.safetensors"
# shellcheck disable=SC2086
{
    check 'an option without its device' fails 2 "bert: pretrain: --rendezvous requires --device \
cuda or hip; it is cpu; 'bert pretrain --help' lists the options" \
        "$bert" pretrain $batches --rendezvous here
    check 'a rendezvous of threads' fails 1 'bert: --rendezvous here is for processes, and this '\
'one was started alone: start them with mpirun, torchrun or srun' \
        "$bert" pretrain $batches --device cuda --ranks 2 --rendezvous here
    check 'processes without a rendezvous' fails 1 'bert: torchrun started 2 processes, which '\
'need a place to find one another: --rendezvous HOST:PORT (rank 0'"'s, a port that is free there) "\
'or a file in a folder that all see, or MASTER_ADDR and MASTER_PORT in the environment' \
        env RANK=0 WORLD_SIZE=2 "$bert" pretrain $batches --device cuda
    check 'a rendezvous without a port' fails 1 \
        "bert: the rendezvous is 'host:', which is neither HOST:PORT, HOST:PORT#RUN nor a file" \
        env RANK=0 WORLD_SIZE=2 "$bert" pretrain $batches --device cuda --rendezvous host:
    check 'an environment without a port' fails 1 \
        "bert: MASTER_ADDR is 'host' and MASTER_PORT '1/2', which is no host with a port" \
        env RANK=0 WORLD_SIZE=2 MASTER_ADDR=host MASTER_PORT=1/2 "$bert" pretrain $batches \
        --device cuda
    for at in "127.0.0.1:$((20000 + $$ % 20000))" "$work/meet"; do
        check "a rank that does not come to ${at##*[/:]}" fails 1 \
            'bert: zf_nccl_comm: rank 1 of 2 did not come within 0.3 s' \
            env RANK=0 WORLD_SIZE=2 "$bert" pretrain $batches --device cuda --deadline 0.3 \
            --rendezvous "$at"
    done
}

total

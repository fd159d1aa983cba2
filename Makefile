# zeroflow: train transformers from C.
#
#     make pretrain      pretrains a BERT on English text in about three minutes
#     make test          builds and runs the tests, in a few minutes
#     make test-all      runs them in every other build as well
#     make quick         runs the tests that a change touches, within seconds
#     make help          lists the rest
#
# There is no configure step. Outputs are in build/ and dist/. Missing packages are installed (by
# root) or named (tools/needs.sh).

VERSION := $(shell sed -n 's/^\#define ZF_VERSION_[MP][A-Z]* //p' zeroflow.h $(wildcard api/*.h) | \
                   paste -s -d .)

# -------------------------------------------------------------------------------------- settings
# Each can be given on the command line: make CC=clang, make pretrain STEPS=2000 THREADS=4.

ifeq ($(origin CC),default)
CC = gcc
endif
CFLAGS  = -O2
LDFLAGS =
LDLIBS  = -lm -lpthread
WERROR  = -Werror
PREFIX  = /usr/local
DESTDIR =

# Settings of make pretrain; tools/make/pretrain.sh has the defaults.
export STEPS MODEL THREADS CORPUS SEQ BATCH MASKED DROPOUT SEED PRECISION VOCAB
# Of make fuzz: inputs for each target. A long run is worth FUZZ_LEVEL=-O1, which takes five times as
# long to compile.
FUZZ_RUNS  = 1000000
FUZZ_LEVEL = -O0

# -------------------------------------------------------------------------------------- sources

DECLARED = $(filter-out api/lines.h,zeroflow.h $(wildcard api/*.h))
LIBRARY  = zeroflow.h $(wildcard api/*.h \
             $(addsuffix /*.c,base graph cpu io options options/* ops ir passes passes/* \
               plan store comm run/* nn nn/*))
DEVICE   = zeroflow_cuda.cu $(wildcard cuda/*.cu cuda/*/*.cu cuda/*/*.h ops/*.cu)
TESTS   := $(shell sh tests/house/units.sh)
FUZZ     = $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/*.c))
TOOLS    = $(patsubst tools/%.c,%,$(wildcard tools/zf-*.c))
EXAMPLES = $(patsubst examples/%.c,%,$(wildcard examples/*.c examples/models/*.c))
BENCHES  = $(patsubst %.c,%,$(wildcard bench/*.c))
LLM      = zeroflow_llm.h $(wildcard llm/*/*.[ch] llm/api/*/*.h)
# Shared by programs and tests: the samples' frame, the samples without their main, zf-opt's passes by
# name, pictures.
SAMPLES  = bert gpt llm opt
PARTS    = $(filter-out %/main.c %/sentences.c, \
             $(wildcard examples/frame/*/*.c examples/bert/*/*.c \
                        $(SAMPLES:%=examples/%/*.c))) \
           $(wildcard tools/pass.c tools/picture*.c tools/written.c tools/plan/*.c)

# make CUDA=1 builds those that run on a GPU, in build/cuda; make HIP=1 those for AMD's, in build/hip.
# NCCL=1: they run on several.
PROGRAMS = $(if $(CUDA)$(HIP),$(foreach on,$(if $(CUDA),cuda) $(if $(HIP),hip),$(SAMPLES:%=build/$(on)/%)), \
             $(SAMPLES:%=build/%) $(TOOLS:%=build/%) $(EXAMPLES:%=build/%))
all: $(PROGRAMS) ## build the programs (the default; CUDA=1, HIP=1: those for a GPU, in build/cuda, build/hip)

# ------------------------------------------------------------------------------------- variants
# A variant is a folder under build/ with the same sources, built in another way.

VARIANTS = build build/quick build/debug build/clang build/asan build/ubsan build/tsan build/fuzz build/coverage \
           build/cuda build/hip build/neon

# Of what long tests cross, this build, clang's and AddressSanitizer's take a third each
# (tests/support/test.h).
build/obj/tests/%: private MODE = -DTEST_ONE_IN=3 -DRANDOM_GRAPHS=50 -DMUTANTS=100
# Compiles the library in two seconds. Its kernels are slow.
build/quick/%:    private override CC = $(or $(shell command -v clang),gcc)
build/quick/%:    private MODE = -O0 -DRANDOM_GRAPHS=60 -DMUTANTS=70 -DTEST_ONE_IN=6 $(DOUBTFUL)
build/debug/%:    private MODE = -Og -g3 $(DOUBTFUL)
build/clang/%:    private override CC = clang
build/clang/%:    private MODE = -DRANDOM_FIRST=101 -DRANDOM_GRAPHS=150 -DMUTANTS=70 -DTEST_ONE_IN=3 \
                             -DTEST_TURN=1
build/asan/%:     private MODE = -O1 -g1 -fsanitize=address,undefined -DRANDOM_GRAPHS=30 -DMUTANTS=70 \
                             -DTEST_ONE_IN=3 -DTEST_TURN=2 -DOOM_REFUSALS=8 -DOOM_SPARSE=0 $(SCALAR) \
                             $(SANITIZED)
build/ubsan/%:    private MODE = -O1 -g1 -fsanitize=undefined $(SANITIZED)
build/ubsan/%:    private override CC = clang
# ThreadSanitizer finds little in graphs that one thread runs, and is slow there.
build/tsan/%:     private MODE = -O1 -g1 -fsanitize=thread -DRANDOM_GRAPHS=6 -DBERT_STEPS=3 \
                             -DTEST_ONE_IN=6 $(PORTABLE) $(SANITIZED)
build/fuzz/%:     private MODE = $(FUZZ_LEVEL) -g1 -fsanitize=fuzzer-no-link,address,undefined $(PORTABLE) \
                             $(SANITIZED)
build/fuzz/%:     private override CC = clang
build/coverage/%: private MODE = -O0 -g --coverage $(DOUBTFUL)

# For Arm, run by qemu. It is the single header that is compiled: it needs no other.
build/neon/%:     private override CC = aarch64-linux-gnu-gcc
build/neon/%:     private MODE = -O1 $(DOUBTFUL) -DZF_WITHOUT_PCRE2 -DTEST_ONE_IN=6 \
                                 -DZF_HEADER='"dist/zeroflow.h"'
build/neon/%:     private LDFLAGS = -static
build/neon/%:     private PCRE2 =

# Warnings of gcc that are often wrong there, unlike at -O2.
DOUBTFUL  = -Wno-unknown-warning-option -Wno-format-truncation -Wno-maybe-uninitialized
SANITIZED = -fno-sanitize-recover=all $(DOUBTFUL)
# Kernels take a third of the time that the library takes to compile. Under a sanitizer loops stay
# scalar. Builds that do not test kernels have those of one instruction set.
SCALAR    = -DZFI_LEVEL='"O1"'
PORTABLE  = -DZFI_PORTABLE $(SCALAR)

# With MPI, the samples and build/bench/overlap also run as processes; make MPICC= builds without.
MPICC := $(shell command -v mpicc)
ifneq ($(MPICC),)
MPI = build/obj/mpi/examples/frame/ranks/mpi.o build/obj/mpi/zeroflow_mpi.o
$(SAMPLES:%=build/%) build/bench/overlap: private override CC = $(MPICC)
$(SAMPLES:%=build/%) build/bench/overlap: $(MPI)
build/mpi/%:     private override CC = $(MPICC)
build/obj/mpi/%: private override CC = $(MPICC)
build/obj/mpi/%: private MODE = -DWITH_MPI
endif

# CUDA: build/cuda. Without a GPU these compile and link as well (make cuda-check).
NVCC       := $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_HOME   = $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
# Compute capabilities; the last one as PTX, for what is newer, too. 90 is compiled as 90a, which has
# products of warpgroups.
CUDA_ARCHS  = 80 90 100
CUDA_LIBS   = -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt -lcudart -lstdc++
CUDA_CODE   = $(foreach a,$(CUDA_ARCHS:90=90a),-gencode arch=compute_$a,code=sm_$a) \
              -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))
NVCC_FLAGS  = -std=c++17 -O3 -isystem $(CUDA_HOME)/include -Xcompiler -Wall,-Wextra $(CUDA_CODE) \
              $(if $(WERROR),-Werror all-warnings)
NCCL_HEADER := $(firstword $(wildcard $(addsuffix /nccl.h,$(CUDA_HOME)/include \
                 /usr/local/include /usr/include)))
COMPILE_CUDA = $(call say,nvcc) mkdir -p $(@D); $(NVCC) $(NVCC_FLAGS) -c -o $@

build/cuda/%: private MODE = -DWITH_CUDA -isystem $(CUDA_HOME)/include
build/cuda/%: private BLAS = $(CUDA_LIBS)
build/cuda/matmul: build/cuda/obj/bench/cuda/matmul.o
	$(LINK)
# Only the kernels of attention; nothing else in the file is called.
build/cuda/attention: bench/cuda/attention.cu zeroflow.h $(DEVICE) build/cuda/libzeroflow.a Makefile
	$(call say,nvcc) mkdir -p $(@D); $(NVCC) $(NVCC_FLAGS) -diag-suppress 177 \
	    -Xcompiler -Wno-unused-function -I. -o $@ $< build/cuda/libzeroflow.a $(LDLIBS)
$(SAMPLES:%=build/cuda/%) $(BENCHES:%=build/cuda/%): build/cuda/obj/zeroflow_cuda.o
ifneq ($(NCCL),)
$(SAMPLES:%=build/cuda/%): build/cuda/obj/nccl/examples/frame/ranks/nccl.o build/cuda/obj/zeroflow_nccl.o
$(SAMPLES:%=build/cuda/%): private BLAS = -lnccl $(CUDA_LIBS)
build/cuda/obj/zeroflow_nccl.o: | $(or $(NCCL_HEADER),nccl.h)
endif
build/cuda/obj/nccl/%.o: %.c build/.found Makefile
	$(COMPILE) -DWITH_NCCL -I. $<
nccl.h:
	@echo 'NCCL=1: there is no nccl.h next to CUDA, in /usr/local/include or in /usr/include' \
	    '(libnccl-dev of its makers)'; exit 1

build/cuda/obj/zeroflow_cuda.o: zeroflow.h $(DEVICE) Makefile
	$(COMPILE_CUDA) -I. zeroflow_cuda.cu

# HIP: build/hip, for AMD's devices of ARCH, one or more (gfx90a,gfx942). RCCL=1: on several.
# CORES=none: without matrix cores.
ARCH       = gfx90a
HIP_HEADERS = $(addprefix -isystem ,$(filter-out /usr/include,$(shell sh tools/hip.sh --include)))
COMPILE_HIP = $(call say,hip) mkdir -p $(@D); sh tools/hip.sh $(ARCH) -O3 -Wall -Wextra $(WERROR) \
              $(if $(filter none,$(CORES)),-DZFD_WITHOUT_CORES) -x hip -I. -c -o $@

build/hip/%: private MODE = -DWITH_CUDA -DWITH_HIP $(HIP_HEADERS) $(if $(RCCL),-D__HIP_PLATFORM_AMD__)
build/hip/%: private BLAS = $(if $(RCCL),-lrccl) $(shell sh tools/hip.sh --libraries)
$(SAMPLES:%=build/hip/%) $(BENCHES:%=build/hip/%): build/hip/obj/zeroflow_cuda.o
ifneq ($(RCCL),)
$(SAMPLES:%=build/hip/%): build/hip/obj/nccl/examples/frame/ranks/nccl.o build/hip/obj/zeroflow_nccl.o
endif
build/hip/obj/nccl/%.o: %.c build/.found Makefile
	$(COMPILE) -DWITH_NCCL -I. $<
build/hip/obj/zeroflow_cuda.o: zeroflow.h $(DEVICE) tools/hip.sh Makefile | build/.needs-hip
	$(COMPILE_HIP) zeroflow_cuda.cu

# Of each architecture a code object, and what its kernels take (tests/hip/run.sh reads it).
HIP_ARCHS  = gfx90a gfx942 gfx1030 gfx1100
build/hip-check/%.co: zeroflow.h $(DEVICE) tools/hip.sh Makefile | build/.needs-hip
	$(call say,hip) mkdir -p $(@D); sh tools/hip.sh $* -O3 -Wall -Wextra $(WERROR) --cuda-device-only \
	    --no-gpu-bundle-output -x hip -I. -c -o $@ zeroflow_cuda.cu
hip-check: $(HIP_ARCHS:%=build/hip-check/%.co) ## compile for AMD's devices, which needs none, and read what kernels take
	@for arch in $(HIP_ARCHS); do sh tests/hip/run.sh $$arch build/hip-check/$$arch.co || exit; done
	@sh tests/hip/run.sh rccl
	@sh tests/hip/run.sh texts

# The same without a GPU: build/emulated, where g++ compiles the device's code for the CPU
# (tests/emulation/block.cpp). tests/cuda/ops.c runs on either.
CXX          ?= g++
CUDA_HEADERS := $(patsubst %/cuda_runtime.h,%,$(firstword $(wildcard \
                  $(CUDA_HOME)/include/cuda_runtime.h /usr/local/cuda/include/cuda_runtime.h)))
# Without nccl.h, sources about ranks are left out.
NCCL_SOURCE   = $(if $(NCCL_HEADER),zeroflow_nccl.c)
CUDA_TESTS    = tests/rlhf/iteration.c \
                $(filter-out $(if $(NCCL_SOURCE),,%/nccl.c %/axes.c %/along.c), \
                             $(wildcard tests/cuda/*.c))
# fmaf as an instruction, where there is one: the same numbers.
FMA          := $(if $(shell grep -sw fma /proc/cpuinfo),-mfma)
EMULATE       = $(call say,compile) mkdir -p $(@D); \
                $(CXX) -std=c++17 -Wall -Wextra $(WERROR) -Wno-unknown-pragmas -Wno-unused-function \
                -O1 -g1 -fno-strict-aliasing -ffp-contract=off $(FMA) \
                -isystem $(CUDA_HEADERS) -I. $(MODE) \
                -MMD -MP -c -o $@
EMULATION     = $(wildcard tests/emulation/*.c*)
# Those of them that run kernels; the others test these.
MACHINE       = $(filter %.cpp,$(EMULATION))
EMULATED      = build/emulated build/emulated/asan

build/emulated/%:      private MODE = -DEMULATION -DWITH_CUDA $(if $(NCCL_SOURCE),-DWITH_NCCL) \
                                      -DTEST_ONE_IN=3
# Of UBSan's checks, those that find an index that is wrong within one object; others take as long to
# compile as the kernels.
build/emulated/asan/%: private MODE = -DEMULATION -fsanitize=address,bounds,shift \
    -DTEST_ONE_IN=4 -DTEST_TURN=1 $(SANITIZED)
# g++ warns of what the checks leave of the code; build/emulated is without warnings.
build/emulated/asan/%: private WERROR =
build/emulated/%:      private BLAS = -lstdc++
build/cuda/tests:      private BLAS = $(if $(NCCL_SOURCE),-lnccl) $(CUDA_LIBS)
build/cuda/tests:      $(patsubst %.c,build/cuda/obj/%.o,tests/support/main.c $(CUDA_TESTS) \
                         $(NCCL_SOURCE)) build/cuda/obj/zeroflow_cuda.o build/cuda/libparts.a \
                       build/cuda/libzeroflow.a
	$(LINK)

# make V=1 shows the commands.
say       = $(if $V,,@$(if $(QUIET),,printf '  %-8s %s\n' $1 $@;))

# Tokenizers with regular expressions (llm/text/regex.c) need PCRE2, where there is one. It is looked for
# at each link, since tools/needs.sh may have installed it for the objects of this very run.
PCRE2     = $(shell $(CC) -DPCRE2_CODE_UNIT_WIDTH=8 -include pcre2.h -E -x c /dev/null \
              > /dev/null 2>&1 && echo -Wl,--as-needed -lpcre2-8)

# What was found on this machine. Objects that are compiled otherwise without it depend on this
# file, which is written again when something comes or goes.
FOUND := PCRE2: $(PCRE2); MPI: $(MPICC); NCCL: $(NCCL_HEADER); CUDA: $(CUDA_HEADERS)
ifneq ($(FOUND),$(file < build/.found))
.PHONY: build/.found
endif
build/.found:
	@mkdir -p build && echo '$(FOUND)' > $@

# The commit that pages name; "": this is no clone.
COMMIT := \#define ZF_COMMIT "$(shell git describe --always --dirty 2> /dev/null)"
ifneq ($(COMMIT),$(file < build/commit.h))
.PHONY: build/commit.h
endif
build/commit.h:
	@mkdir -p build && echo '$(COMMIT)' > $@

IMPLEMENT = -DZEROFLOW_IMPLEMENTATION
STRICT    = -std=c11 -Wall -Wextra -pedantic -Wshadow $(WERROR)
COMPILE   = $(call say,compile) mkdir -p $(@D); \
            $(CC) $(STRICT) $(CFLAGS) $(MODE) $(PLAIN) -MMD -MP -c -o $@
# Tests, and in builds that are there for them the samples, are compiled in a third of the time
# without optimization, and run little of their own code, but those that compute much. unit.c has
# the library in it.
COMPUTING = $(foreach t,ops/ops ranks/comm attention/attention attention/attention_blocks ops/logp \
                ops/head ops/half support/numbers,%/tests/$t.o)
PLAIN     = $(if $(filter-out %/tests/inside/unit.o,$(filter build/obj/tests/%.o \
              $(foreach v,clang asan ubsan tsan neon fuzz,build/$v/obj/tests/%.o \
                  build/$v/obj/examples/%.o build/$v/obj/tools/%.o),$@)), \
              $(if $(filter $(COMPUTING),$@),-O1,-O0) $(DOUBTFUL))
LINK      = $(call say,link) mkdir -p $(@D); \
            $(CC) $(CFLAGS) $(MODE) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) \
            $(BLAS) $(PCRE2) $(LDLIBS)
# -q: files of several samples have the same name.
ARCHIVE   = $(if $V,,@)rm -f $@; ar -cqs $@ $^

# $1: the folder of a variant.
define variant
$1/obj/%.o: %.c Makefile $(if $(filter build/neon,$1),dist/zeroflow.h) | \
            build/.needs-$(if $(filter build,$1),build,test-all)
	$$(COMPILE) -I. $$<
$(PARTS:%.c=$1/obj/%.o): build/.found
$1/obj/examples/frame/run/reports.o: build/commit.h
$1/obj/zeroflow.o: zeroflow.h Makefile | build/.needs-$(if $(filter build,$1),build,test-all)
	$$(COMPILE) $(IMPLEMENT) -x c $$<
$1/libzeroflow.a: $1/obj/zeroflow.o
	$$(ARCHIVE)
$1/obj/zeroflow_llm.o: zeroflow_llm.h build/.found Makefile | build/.needs-$(if $(filter build,$1),build,test-all)
	$$(COMPILE) -DZEROFLOW_LLM_IMPLEMENTATION -x c $$<
$1/libparts.a: $(PARTS:%.c=$1/obj/%.o) $1/obj/zeroflow_llm.o
	$$(ARCHIVE)
$(SAMPLES:%=$1/%): $1/%: $1/obj/examples/%/main.o $1/libparts.a $1/libzeroflow.a
	$$(LINK)
$(TOOLS:%=$1/%): $1/%: $1/obj/tools/%.o $1/libparts.a $1/libzeroflow.a
	$$(LINK)
$(EXAMPLES:%=$1/%): $1/%: $1/obj/examples/%.o $1/libzeroflow.a
	$$(LINK)
$1/chat $1/generate $1/rlhf: $1/obj/zeroflow_llm.o
$(BENCHES:%=$1/%): $1/%: $1/obj/%.o $1/libparts.a $1/libzeroflow.a
	$$(LINK)
endef

$(foreach v,$(VARIANTS),$(eval $(call variant,$v)))

# The tests contain the implementation, in unit.c; those of CUDA are separate and link it. Their
# samples and their library allocate through tests/support/main.c, and report their messages to it.
OBJCOPY = objcopy
build/neon/libtested.a: private OBJCOPY = aarch64-linux-gnu-objcopy
HOOKED  = malloc calloc realloc snprintf vsnprintf strcmp
%/libtested.a: %/libparts.a
	$(if $V,,@)$(OBJCOPY) $(foreach f,$(HOOKED),--redefine-sym $f=test_$f) $< $@

# Calls of every public function, from their declarations.
build/arguments.h: tests/graph/arguments.awk $(DECLARED)
	$(call say,write) mkdir -p build; awk -f tests/graph/arguments.awk $(filter %.h,$^) > $@.part
	@mv $@.part $@
$(patsubst %,%/obj/tests/graph/arguments.o,$(VARIANTS) build/blas): build/arguments.h

define tested
$1/tests: $(TESTS:%.c=$1/obj/%.o) $1/libtested.a
	$$(LINK)
endef
$(foreach v,$(filter-out build/cuda build/hip build/neon,$(VARIANTS)),$(eval $(call tested,$v)))
# Those of kernels.
build/neon/tests: $(patsubst %,build/neon/obj/%.o,tools/pass \
                    $(addprefix tests/,attention/attention inside/unit ops/half ops/ops ops/rows \
                                support/disk support/main support/numbers))
	$(LINK)

# Each example is a whole program and carries the implementation. Here all link one; the tests build
# one as its own comment says.
$(EXAMPLES:%=build/obj/examples/%.o): private MODE = -DZEROFLOW_IMPLEMENTED \
                                                    -DZEROFLOW_LLM_IMPLEMENTED

# The tests with an implementation that calls a BLAS, whose products are fast without optimization.
# What only declares the library is as in build.
build/blas/%: private override CC = $(or $(shell command -v clang),gcc)
build/blas/%: private MODE = -O0 $(PORTABLE) $(DOUBTFUL) -DZEROFLOW_CBLAS -DTEST_ONE_IN=6
build/blas/%: private BLAS = -lopenblas
build/blas/obj/%.o: %.c Makefile | build/.needs-test-all
	$(COMPILE) -I. $<
build/blas/tests: build/blas/obj/tests/inside/unit.o build/libtested.a \
                  $(patsubst %.c,build/obj/%.o,$(filter-out %/inside/unit.c,$(TESTS)))
	$(LINK)

# Programs that run as processes are compiled by mpicc.
build/obj/mpi/%.o: %.c build/.found Makefile | build/.needs-build
	$(COMPILE) -I. $<
build/mpi/%: build/obj/mpi/tests/mpi/%.o build/obj/mpi/zeroflow_mpi.o build/libzeroflow.a
	$(LINK)

$(FUZZ:%=build/fuzz/%): build/fuzz/%: build/fuzz/obj/tests/fuzz/%.o build/fuzz/libparts.a \
                                      build/fuzz/libzeroflow.a
	$(LINK) -fsanitize=fuzzer

# $1: one of EMULATED. $2: the parts and the library that go with it. With AddressSanitizer that is
# the one that the tests carry, since it takes long to compile; run.sh leaves its tests out.
define emulated
$1/obj/%.o: %.c build/.found Makefile
	$$(COMPILE) -I. -isystem $(CUDA_HEADERS) $$<
$1/obj/%.o: %.cpp build/.found Makefile
	$$(EMULATE) -O2 $$<
$1/obj/zeroflow_cuda.o: zeroflow_cuda.cu tests/emulation/kernel.h Makefile
	$$(EMULATE) -include tests/emulation/kernel.h -x c++ $$<
$1/obj/%.o: %.cu tests/emulation/kernel.h Makefile
	$$(EMULATE) -include tests/emulation/kernel.h -x c++ $$<
$1/tests: $(patsubst %,$1/obj/%.o,$(basename tests/support/main.c $(CUDA_TESTS) \
              examples/frame/options/device.c $(EMULATION) zeroflow_cuda.cu $(NCCL_SOURCE))) $2
	$$(LINK)
endef
# Programs on the emulated device: BERT for its test; benchmarks, to try bench/cuda.sh with small models.
ON_EMULATED = $(patsubst %,build/emulated/obj/%.o,$(basename examples/frame/ranks/nccl.c \
                  examples/frame/options/device.c $(MACHINE) zeroflow_cuda.cu $(NCCL_SOURCE))) \
              build/libparts.a build/libzeroflow.a
build/emulated/bert: build/emulated/obj/examples/bert/main.o $(ON_EMULATED)
	$(LINK)
$(BENCHES:%=build/emulated/%): build/emulated/%: build/emulated/obj/%.o $(ON_EMULATED)
	$(LINK)
$(eval $(call emulated,build/emulated,build/libparts.a build/libzeroflow.a))
$(eval $(call emulated,build/emulated/asan,build/asan/obj/tests/inside/unit.o \
               build/asan/obj/tests/support/disk.o build/asan/obj/tests/support/numbers.o \
               build/asan/libparts.a))

-include $(shell find $(wildcard $(VARIANTS:%=%/obj) $(EMULATED:%=%/obj) build/blas/obj) \
                      /dev/null -name '*.d')

# Missing packages are checked once.
build/.needs-%: tools/needs.sh
	@CC='$(CC)' sh tools/needs.sh $*
	@mkdir -p build && touch $@

# ------------------------------------------------------------------------------- the single file

dist: dist/zeroflow.h ## write dist/zeroflow.h, the library in one file

STB_DS = $(firstword $(wildcard /usr/include/stb/stb_ds.h /usr/local/include/stb/stb_ds.h))

dist/zeroflow.h: $(LIBRARY) LICENSE build/amalgamate
	@mkdir -p dist
	$(call say,write) build/amalgamate $(VERSION) LICENSE zeroflow.h stb/stb_ds.h=$(STB_DS) > $@.part
	@mv $@.part $@

build/amalgamate build/lines: build/%: build/obj/tools/make/%.o
	$(LINK)

# Macros cannot be made by macros: api/lines.h is, from the declarations of builders.
lines: build/lines ## write api/lines.h, the macros of builders
	$(call say,write) $< $(DECLARED) > build/lines.h
	@cmp -s build/lines.h api/lines.h || cp build/lines.h api/lines.h
ready-opt: build/lines

# The backend for CUDA and communicators, each to be compiled with that header.
BACKENDS = zeroflow_cuda.cu zeroflow_mpi.c zeroflow_nccl.c
dist: $(BACKENDS:%=dist/%)

$(BACKENDS:%=dist/%): dist/%: % $(LIBRARY) $(DEVICE) LICENSE build/amalgamate
	@mkdir -p dist
	$(call say,write) build/amalgamate $(VERSION) LICENSE $< zeroflow.h= > $@.part
	@mv $@.part $@

# The library of language models, which includes that header.
dist: dist/zeroflow_llm.h

dist/zeroflow_llm.h: $(LLM) LICENSE build/amalgamate
	@mkdir -p dist
	$(call say,write) build/amalgamate $(VERSION) LICENSE zeroflow_llm.h zeroflow.h= > $@.part
	@mv $@.part $@

# ------------------------------------------------------------------------------------ pretraining

pretrain: build/bert ## pretrain a BERT (STEPS, MODEL, THREADS, CORPUS: tools/make/pretrain.sh)
	@CC='$(CC)' sh tools/make/pretrain.sh

rlhf: build/llm build/bert build/zf-report ## small models learn sums and definitions from rewards (WHAT=sums, SEEDS, WORK: bench/rlhf.sh)
	@sh bench/rlhf.sh $(WHAT)

# ------------------------------------------------------------------------------------------ tests

test: build/.needs-test ## build and run the tests
	+@MAKE='$(MAKE)' sh tests/run.sh test

test-all: build/.needs-test-all ## the same, and all of them again in every other build
	+@MAKE='$(MAKE)' sh tests/run.sh all

quick: build/quick/tests ## the unit tests that the change touches, without optimisation
	@sh tests/house/touched.sh build/quick/tests

debug: build/debug/tests $(patsubst build/%,build/debug/%,$(SAMPLES:%=build/%) $(TOOLS:%=build/%)) ## programs and tests for gdb, in build/debug (tools/gdb/zeroflow.py prints graphs)

compile_commands.json: $(LIBRARY) $(TESTS) Makefile tools/make/commands.sh ## how clangd and others compile each file
	@sh tools/make/commands.sh '$(CC) $(STRICT)' > $@

# Each group of tests: what it needs built (ready-GROUP), then tests/run.sh runs it.
GROUPS      = unit more-unit mpi examples opt plan bert gpt consumers
MORE_GROUPS = oom clang dist asan more-asan ubsan tsan blas more-mpi more-consumers install fuzz neon \
              cuda-check emulated more-emulated emulated-asan nccl docs

ready-unit ready-more-unit ready-oom: build/tests
ready-clang:        build/clang/tests
ready-dist:         dist/zeroflow.h
ready-asan ready-more-asan: build/asan/tests
ready-ubsan:        build/ubsan/tests
ready-tsan:         build/tsan/tests
ready-blas:         $(if $(wildcard /usr/include/cblas.h /usr/include/*/cblas.h),build/blas/tests)
ready-mpi ready-more-mpi: $(if $(MPICC),build/mpi/comm build/mpi/faults)
ready-more-mpi:     $(if $(MPICC),build/mpi/stages build/llm)
ready-examples:     $(EXAMPLES:%=build/%)
ready-opt:          build/zf-opt
ready-plan:         build/zf-plan build/zf-opt build/zf-report
ready-bert:         build/bert
ready-gpt:          build/gpt build/llm build/bert build/chat
ready-docs:         build/bert build/gpt build/llm build/zf-opt build/zf-plan build/zf-report build/own_op build/rlhf build/models/gru build/tests
ready-consumers ready-more-consumers: dist
ready-neon:         $(if $(shell command -v aarch64-linux-gnu-gcc),build/neon/tests)
ready-cuda-check:   $(if $(NVCC),build/cuda-check/device)
ready-emulated:     $(if $(CUDA_HEADERS),build/emulated/tests build/emulated/bert)
ready-nccl ready-more-emulated: $(if $(CUDA_HEADERS),build/emulated/tests)
ready-emulated-asan: $(if $(CUDA_HEADERS),build/emulated/asan/tests)
ready-fuzz:         $(FUZZ:%=build/fuzz/%)

$(GROUPS:%=test-%): test-%: ready-% build/.needs-test
	@CC='$(CC)' sh tests/run.sh $(@:test-%=%)
$(MORE_GROUPS:%=test-%): test-%: ready-% build/.needs-test-all
	@CC='$(CC)' ALL='$(ALL)' sh tests/run.sh $(@:test-%=%)

# What is shipped, in a C program. Sources ask only whether the architecture is 9.0a, and has 8.0's
# instructions (cuda/cores/wgmma.cu, cuda/launch.cu): 9.0a is compiled here, and 8.0, which all others
# are like, without optimization by the consumer of CMake's component (tests/consumers/install.sh).
build/cuda-check/zeroflow_cuda.o: private CUDA_CODE = -gencode arch=compute_90a,code=sm_90a -Xcompiler -O1
# zeroflow_cuda.ptxas: registers and spills of each kernel.
build/cuda-check/zeroflow_cuda.o: dist/zeroflow_cuda.cu dist/zeroflow.h Makefile
	$(COMPILE_CUDA) -Xptxas -v $< 2> $(@:.o=.ptxas) || { cat $(@:.o=.ptxas) >&2; exit 1; }
build/cuda-check/device.o: private override CC = $(or $(shell command -v clang),gcc)
build/cuda-check/device.o: private CFLAGS = -O0 $(PORTABLE) $(DOUBTFUL)
build/cuda-check/device.o: tests/consumers/device.c dist/zeroflow.h Makefile
	$(COMPILE) $(if $(NCCL_HEADER),-DWITH_NCCL) -Idist $<
build/cuda-check/zeroflow_nccl.o: zeroflow_nccl.c zeroflow.h Makefile
	$(COMPILE) -isystem $(CUDA_HOME)/include $<
build/cuda-check/device: private BLAS = $(if $(NCCL_HEADER),-lnccl) $(CUDA_LIBS)
build/cuda-check/device: build/cuda-check/device.o build/cuda-check/zeroflow_cuda.o \
                         $(if $(NCCL_HEADER),build/cuda-check/zeroflow_nccl.o)
	$(LINK)

cuda-check: test-cuda-check ## compile and link all that is for CUDA, which needs no GPU

emulated: test-emulated test-more-emulated test-nccl test-emulated-asan ## CUDA's kernels, run on the CPU, against the CPU's

asan: test-more-asan
unit: test-more-unit
unit oom asan ubsan tsan: %: test-% ## the unit tests; with allocations refused in turn (ALL=1: each), or under a sanitizer

mutants: build/.needs-test ## plant mistakes one by one, each of which a test must notice (some minutes)
	@MAKEFLAGS= sh tests/mutants/run.sh

# SEED: of the first pair that is drawn.
bits: build/bert build/gpt build/llm ## the same bits at every stage, bucket, prefetch and split (some minutes)
	sh tests/long/bits.sh build/bert

kill: build/bert build/llm ## runs that are killed at random moments and resumed (some minutes)
	sh tests/long/kill.sh build/bert 100
	sh tests/long/kill.sh build/llm 50 layouts
	for what in dpo grpo ppo; do sh tests/long/kill.sh build/llm 10 $$what || exit 1; done

bless: build/tests ## rewrite the expectations in tests/passes/ (then read the diff)
	build/tests --bless passes

fuzz: $(FUZZ:%=fuzz-%) ## feed FUZZ_RUNS inputs to each fuzz target

$(FUZZ:%=fuzz-%): fuzz-%: build/fuzz/%
	@mkdir -p build/fuzz/found/$*
	build/fuzz/$* -runs=$(FUZZ_RUNS) -print_final_stats=1 -artifact_prefix=build/fuzz/$*- \
	    build/fuzz/found/$* $(wildcard tests/fuzz/seeds/$*)

MUTATE_RUNS = 100000
MUTATE_SEED = 1000000
mutate: build/tests ## MUTATE_RUNS mutated graphs through random passes, from MUTATE_SEED on
	MUTATE_RUNS=$(MUTATE_RUNS) MUTATE_SEED=$(MUTATE_SEED) build/tests mutate_graphs

coverage: build/coverage/tests ## lines that the unit tests run, by file
	@find build/coverage -name '*.gcda' -delete
	@build/coverage/tests | tail -n 1
	@gcov -n -r $$(find build/coverage -name '*.gcda') | awk -F "[':% ]+" ' \
	    /^File/ { file = $$2 } \
	    /^Lines/ && file ~ /\.c$$/ && file !~ /^tests/ { \
	        printf "%6.1f%% of %5d  %s\n", $$3, $$5, file | "sort -k 4"; \
	        run += $$3 * $$5 / 100; all += $$5 } \
	    /^Lines/ { file = "" } \
	    END { close("sort -k 4"); printf "%6.1f%% of %5d  all\n", 100 * run / all, all }'

tidy: dist ## what clang-tidy and cppcheck suspect in the library (Debian: clang-tidy cppcheck)
	-cppcheck --std=c11 --quiet --enable=warning,portability --language=c $(IMPLEMENT) zeroflow.h
	-clang-tidy --quiet --checks='-clang-analyzer-security.insecureAPI.*' dist/zeroflow.h -- \
	    -std=c11 -x c $(IMPLEMENT)

# ---------------------------------------------------------------------------------------- the rest

docs: build/.needs-docs ## write the reference of the public headers to build/docs/html (Debian: doxygen)
	@mkdir -p build/docs
	@VERSION=$(VERSION) HEADERS='$(wildcard zeroflow.h zeroflow_llm.h api/*.h)' doxygen docs/Doxyfile
	@! grep . build/docs/warnings
	@echo build/docs/html/index.html

bench: $(BENCHES:%=build/%) ## build the benchmarks; the head of each bench/*.c says how to run it
	@printf '%s\n' $^

# What `make install` writes is written below build/stage first, so that `make uninstall` knows it.
# LIBDIR is below PREFIX, or a path that CMake's package finds from there.
LIBDIR         = $(PREFIX)/lib
PROGRAM_PREFIX =
INSTALLED = $(SAMPLES) $(TOOLS)
SERIES    = $(basename $(VERSION))
STAGE     = build/stage
STAGED    = $(STAGE)$(PREFIX)
COMPILED  = build/libzeroflow.a build/libzeroflow_llm.a build/libzeroflow.so.$(SERIES) \
            build/libzeroflow_llm.so.$(SERIES)
relative  = $(shell realpath -m --relative-to='$1' '$2')
FILL      = sed 's,@VERSION@,$(VERSION),; s,@SERIES@,$(SERIES),; \
                 s,@LIBRARIES@,$(call relative,$(PREFIX),$(LIBDIR)),; \
                 s,@INCLUDE@,$(call relative,$(LIBDIR)/pkgconfig,$(PREFIX)/include),; \
                 s,if(@PCRE2@),if($(if $(PCRE2),ON,OFF)),; s,@PCRE2@,$(if $(PCRE2),-lpcre2-8),; \
                 s, *@WITHOUT_PCRE2@,$(if $(PCRE2),, -DZF_WITHOUT_PCRE2),'

# The objects of the programs are those of both kinds of library. Only what begins with zf_ is seen
# from outside.
SHARED = -fPIC -fno-semantic-interposition -fvisibility=hidden \
         '-DZF_API=__attribute__((visibility("default")))'
build/obj/zeroflow.o build/obj/zeroflow_llm.o: private MODE = $(SHARED)
LINK_SHARED = $(call say,link) $(CC) $(CFLAGS) -shared -Wl,-soname,$(@F) -Wl,-z,defs -o $@ \
              $(LDFLAGS) $(filter-out Makefile,$^)
build/libzeroflow.so.$(SERIES): build/obj/zeroflow.o Makefile
	$(LINK_SHARED) $(LDLIBS)
build/libzeroflow_llm.so.$(SERIES): build/obj/zeroflow_llm.o build/libzeroflow.so.$(SERIES) Makefile
	$(LINK_SHARED) $(PCRE2) $(LDLIBS)
build/libzeroflow_llm.a: build/obj/zeroflow_llm.o
	$(ARCHIVE)

stage-headers: dist
	rm -rf $(STAGE)
	install -d $(STAGED)/include $(STAGED)/share/pkgconfig $(STAGED)/share/cmake/zeroflow \
	    $(STAGED)/share/zeroflow
	install -m 644 dist/zeroflow.h dist/zeroflow_llm.h $(STAGED)/include
	install -m 644 $(BACKENDS:%=dist/%) $(STAGED)/share/zeroflow
	for f in zeroflow-config zeroflow-config-version; do \
	    $(FILL) tools/install/$$f.cmake > $(STAGED)/share/cmake/zeroflow/$$f.cmake || exit; done
	for f in zeroflow zeroflow_llm; do \
	    $(FILL) tools/install/$$f.pc > $(STAGED)/share/pkgconfig/$$f.pc || exit; done

stage: $(COMPILED) $(INSTALLED:%=build/%) stage-headers
	install -d $(STAGED)/bin $(STAGED)/share/man/man1 $(STAGED)/share/doc/zeroflow/docs \
	    $(STAGE)$(LIBDIR)/pkgconfig
	install -m 644 $(filter %.a,$(COMPILED)) $(STAGE)$(LIBDIR)
	install -m 755 $(filter %.so.$(SERIES),$(COMPILED)) $(STAGE)$(LIBDIR)
	for l in zeroflow zeroflow_llm; do \
	    ln -s lib$$l.so.$(SERIES) $(STAGE)$(LIBDIR)/lib$$l.so || exit; \
	    $(FILL) tools/install/lib$$l.pc > $(STAGE)$(LIBDIR)/pkgconfig/lib$$l.pc || exit; done
	for p in $(INSTALLED); do \
	    install -m 755 build/$$p $(STAGED)/bin/$(PROGRAM_PREFIX)$$p || exit; \
	    source=tools/$$p.c; [ -e $$source ] || source=examples/$$p/main.c; \
	    sh tools/install/man.sh build/$$p $$source $(VERSION) $(PROGRAM_PREFIX)$$p \
	        > $(STAGED)/share/man/man1/$(PROGRAM_PREFIX)$$p.1 || exit; done
	install -m 644 LICENSE README.md CHANGELOG.md $(STAGED)/share/doc/zeroflow
	install -m 644 docs/*.md $(STAGED)/share/doc/zeroflow/docs

ready-install: $(COMPILED) $(INSTALLED:%=build/%) dist

# $1: a command for each file $f of the stage, whose place is $to.
staged = cd $(STAGE) && find . ! -type d | while read -r f; do \
             to="$(if $(DESTDIR),$(abspath $(DESTDIR)))/$$f"; $1 || exit; done
place  = mkdir -p "$${to%/*}" && if [ -L "$$f" ]; then cp -Pf "$$f" "$$to"; else \
             mode=644; [ ! -x "$$f" ] || mode=755; install -m $$mode "$$f" "$$to"; fi

install: stage ## install headers, libraries, programs, manual pages, sources for MPI, CUDA and NCCL, pkg-config and CMake (PREFIX, LIBDIR, DESTDIR, PROGRAM_PREFIX)
	$(call staged,$(place))
install-headers: stage-headers ## of these only what a program needs that carries the implementation
	$(call staged,$(place))
uninstall: stage ## remove what make install has written with the same settings
	$(call staged,rm -f "$$to")
	-rmdir $(addprefix $(DESTDIR)$(PREFIX)/share/,cmake/zeroflow zeroflow doc/zeroflow/docs doc/zeroflow)

check-install: test-install ## build programs from an installed tree: C, C++, CMake; MPI, CUDA, NCCL

clean: ## remove build/ and dist/
	rm -rf build dist compile_commands.json

help: ## list the targets
	@sed -n 's/^\([a-z][a-z_. -]*\):.* ## /\1: /p' Makefile | awk '{ \
	    at = index($$0, ": "); printf "%-22s%s\n", substr($$0, 1, at - 1), substr($$0, at + 2) }'

.PHONY: all dist lines docs pretrain rlhf quick debug test test-all unit oom asan ubsan tsan cuda-check hip-check emulated mutants mutate bits kill bless fuzz coverage tidy bench stage stage-headers install install-headers uninstall check-install clean \
        help $(foreach g,$(GROUPS) $(MORE_GROUPS),ready-$g test-$g) $(FUZZ:%=fuzz-%)
.SECONDARY:
.DELETE_ON_ERROR:

noinst_LTLIBRARIES += libkernels.la
libkernels_la_SOURCES = \
	kernels/kernels.c kernels/kernels.h \
	kernels/module.h \
	kernels/adamw.h \
	kernels/random.h
# Replicas must stay bit-identical on unlike machines, so no step may be fused with another. Loops
# marked "omp simd" are vectorised, without an OpenMP runtime; where a sanitizer or libm's exp prevents
# that, it is no reason for clang to warn.
kernels_cflags = $(AM_CFLAGS) -ffp-contract=off -fno-math-errno -fno-trapping-math -fopenmp-simd \
	-Wno-pass-failed
libkernels_la_CPPFLAGS = $(AM_CPPFLAGS) -DETH_HPP_MODULE_FOLDER='"$(pkglibdir)"'
libkernels_la_CFLAGS = $(kernels_cflags)

if HAVE_ONEDNN
cpu_kernels = \
	kernels/cpu/attention.c \
	kernels/cpu/cpu.c kernels/cpu/cpu.h \
	kernels/cpu/cross_entropy.c \
	kernels/cpu/dropout.c kernels/cpu/dropout.h \
	kernels/cpu/elementwise.c \
	kernels/cpu/embedding.c \
	kernels/cpu/gemm.c kernels/cpu/gemm.h \
	kernels/cpu/initialise.c \
	kernels/cpu/layernorm.c \
	kernels/cpu/linear.c \
	kernels/cpu/memory.c \
	kernels/cpu/optimizer.c \
	kernels/cpu/rotary.c \
	kernels/cpu/softmax.h \
	kernels/cpu/streams.c \
	kernels/cpu/swiglu.c
libkernels_la_SOURCES += $(cpu_kernels) \
	kernels/cpu/thread_count.c kernels/cpu/threads.c kernels/cpu/threads.h
libkernels_la_CFLAGS += $(ONEDNN_CFLAGS)

# The same files over double, for the gradient checks of the unit tests.
check_LTLIBRARIES += libkernels64.la
libkernels64_la_SOURCES = $(cpu_kernels)
libkernels64_la_CPPFLAGS = $(AM_CPPFLAGS) -DETH_HPP_CPU_FLOAT64
libkernels64_la_CFLAGS = $(kernels_cflags) $(ONEDNN_CFLAGS)
endif

# The GPU module's kernels: nvcc compiles them where there is a toolkit (make cuda-objects), and
# tests/emulation/cuda the same files for the host.
cuda_kernels = \
	kernels/cuda/attention.cu \
	kernels/cuda/attention_backward.cu \
	kernels/cuda/cross_entropy.cu \
	kernels/cuda/cuda.cu \
	kernels/cuda/dropout.cu \
	kernels/cuda/elementwise.cu \
	kernels/cuda/embedding.cu \
	kernels/cuda/initialise.cu \
	kernels/cuda/layernorm.cu \
	kernels/cuda/linear.cu \
	kernels/cuda/memory.cu \
	kernels/cuda/optimizer.cu \
	kernels/cuda/rotary.cu \
	kernels/cuda/swiglu.cu
cuda_headers = \
	kernels/cuda/attention.h \
	kernels/cuda/create.h \
	kernels/cuda/cuda.h \
	kernels/cuda/device.h \
	kernels/cuda/dropout.h
EXTRA_DIST += $(cuda_kernels) $(cuda_headers)
SUFFIXES = .cu .nv

if HAVE_CUDA
# No step is fused with another unless it says so (fmaf): replicas stay bit-identical. Beside each
# object stands what ptxas said of its kernels' registers.
cuda_objects = $(cuda_kernels:.cu=.nv)
CLEANFILES += $(cuda_objects) $(cuda_kernels:.cu=.ptxas)
.cu.nv:
	$(AM_V_GEN)$(MKDIR_P) $(@D) && \
	for architecture in $(CUDA_ARCHITECTURES); do \
		set -- "$$@" -gencode arch=compute_$$architecture,code=sm_$$architecture; \
	done && \
	$(NVCC) "$$@" -std=c++17 -O3 -fmad=false -Xptxas -v -Xcompiler -fPIC,-fvisibility=hidden,-Wall \
		$(AM_CPPFLAGS) -c -o $@ $< >$(@:.nv=.ptxas) 2>&1 || { cat $(@:.nv=.ptxas) >&2; exit 1; }

$(cuda_objects): $(cuda_headers)
cuda-objects: $(cuda_objects)
.PHONY: cuda-objects
endif

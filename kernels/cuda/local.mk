# The GPU module: nvcc compiles and links it where there is a toolkit, and tests/emulation/cuda makes one
# of the same files for the host.
cuda_kernels = \
	kernels/cuda/attention.cu \
	kernels/cuda/attention_backward.cu \
	kernels/cuda/cross_entropy.cu \
	kernels/cuda/cuda.cu \
	kernels/cuda/dropout.cu \
	kernels/cuda/elementwise.cu \
	kernels/cuda/embedding.cu \
	kernels/cuda/environment.cu \
	kernels/cuda/initialise.cu \
	kernels/cuda/layernorm.cu \
	kernels/cuda/linear.cu \
	kernels/cuda/memory.cu \
	kernels/cuda/optimizer.cu \
	kernels/cuda/rotary.cu \
	kernels/cuda/streams.cu \
	kernels/cuda/swiglu.cu
cuda_headers = \
	kernels/cuda/attention.h \
	kernels/cuda/create.h \
	kernels/cuda/cuda.h \
	kernels/cuda/device.h \
	kernels/cuda/dropout.h
EXTRA_DIST += $(cuda_kernels) $(cuda_headers)

# What is C in it: its entry, and what it uses of the library, a copy of its own.
noinst_LTLIBRARIES += libcuda_module.la
libcuda_module_la_SOURCES = \
	kernels/cuda/module.c \
	lib/base/dtype.c lib/base/error.c
libcuda_module_la_CPPFLAGS = $(AM_CPPFLAGS)

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

# CUDA's runtime is linked in, so that the module opens, and says what is missing, where there is no
# driver. cuBLASLt, which is large, is found at run time.
cuda_module = libethhpp_cuda.so
noinst_DATA += $(cuda_module)
CLEANFILES += $(cuda_module)
$(cuda_module): $(cuda_objects) libcuda_module.la
	$(AM_V_CXXLD)$(CXX) -shared -o $@ $(cuda_objects) .libs/libcuda_module.a $(LDFLAGS) -L$(CUDA_LIBDIR) \
		-Wl,-u,eth_hpp_module_get,--no-undefined,--exclude-libs=libcudart_static.a,-rpath=$(CUDA_LIBDIR) -lcublasLt -lcudart_static -lpthread -ldl -lrt
install-exec-local: $(cuda_module)
	$(MKDIR_P) "$(DESTDIR)$(pkglibdir)"
	$(INSTALL) $(cuda_module) "$(DESTDIR)$(pkglibdir)/$(cuda_module)"
uninstall-local:
	rm -f "$(DESTDIR)$(pkglibdir)/$(cuda_module)"
endif

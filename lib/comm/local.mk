noinst_LTLIBRARIES += libcomm.la
libcomm_la_SOURCES = \
	lib/comm/comm.c lib/comm/comm.h \
	lib/comm/component.h \
	lib/comm/device.c \
	lib/comm/nccl/nccl.c lib/comm/nccl/nccl.h \
	lib/comm/nccl/nccl_api.h \
	lib/comm/nccl/nccl_communicator.c \
	lib/comm/nccl/nccl_exchange.c \
	lib/comm/nccl/nccl_request.c \
	lib/comm/self.c \
	lib/comm/staged.c
libcomm_la_CFLAGS = $(AM_CFLAGS) $(UCX_CFLAGS)
if HAVE_UCX
libcomm_la_SOURCES += \
	lib/comm/ucx/ucx.c lib/comm/ucx/ucx.h \
	lib/comm/ucx/ucx_direct_sum.c \
	lib/comm/ucx/ucx_failure.c \
	lib/comm/ucx/ucx_group.c \
	lib/comm/ucx/ucx_library.c lib/comm/ucx/ucx_library.h \
	lib/comm/ucx/ucx_message.c \
	lib/comm/ucx/ucx_far_sum.c \
	lib/comm/ucx/ucx_near.c \
	lib/comm/ucx/ucx_near_sum.c \
	lib/comm/ucx/ucx_peer.c \
	lib/comm/ucx/ucx_reduce.c \
	lib/comm/ucx/ucx_request.c \
	lib/comm/ucx/ucx_sum.c lib/comm/ucx/ucx_sum.h \
	lib/comm/ucx/ucx_thread.c
endif

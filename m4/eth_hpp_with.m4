# One macro for each optional dependency. Each sets have_X, an Automake conditional HAVE_X and a line of the summary that
# says which package brings what is missing, and what is then not built.
# --with-X=auto (default) uses it where it is found; --with-X or --with-X=DIR demands it; --with-X=no leaves it out.

# ETH_HPP_ARG_WITH(name, what) -> $with_name is auto, no, yes or a folder
AC_DEFUN([ETH_HPP_ARG_WITH], [
    AC_ARG_WITH([$1], [AS_HELP_STRING([--with-$1=auto|DIR|no], [$2 (default: auto)])], [], [with_$1=auto])
])

# ETH_HPP_RESULT(name, package, consequence): stops where it was demanded and is missing; records the summary line.
AC_DEFUN([ETH_HPP_RESULT], [
    AS_CASE([$have_$1:$with_$1],
        [yes:*], [summary_$1="yes"],
        [*:no], [summary_$1="no (--with-$1=no): $3"],
        [*:auto], [summary_$1="no: install $2; $3"],
        [AC_MSG_ERROR([--with-$1=$with_$1, but it is not found there: install $2, or leave the option out])])
])

# ETH_HPP_PKG(NAME, name, modules): finds by pkg-config; only in the folder where one was given.
AC_DEFUN([ETH_HPP_PKG], [
    have_$2=no
    AS_CASE([$with_$2],
        [no], [],
        [/*], [
            for eth_hpp_dir in "$with_$2"/lib*/pkgconfig "$with_$2"/lib/*/pkgconfig; do
                AS_IF([test -e "$eth_hpp_dir/$2.pc"], [have_$2=yes; export PKG_CONFIG_PATH="$eth_hpp_dir:$PKG_CONFIG_PATH"])
            done
            AS_IF([test $have_$2 = yes], [PKG_CHECK_MODULES([$1], [$3], [], [have_$2=no])])
        ],
        [PKG_CHECK_MODULES([$1], [$3], [have_$2=yes], [have_$2=no])])
])

# ETH_HPP_LIBRARY(VARIABLE, library, function, LIBS, DESCRIPTION): the file of a shared library that is opened at run
# time, as a program that is linked with it would name it.
AC_DEFUN([ETH_HPP_LIBRARY], [
    AC_REQUIRE([ETH_HPP_READELF])
    eth_hpp_libs=$LIBS
    LIBS="$4 $LIBS"
    AC_MSG_CHECKING([for the file of lib$2])
    AC_LINK_IFELSE([AC_LANG_CALL([], [$3])],
        [$1=`"$READELF" -d conftest$EXEEXT | sed -n 's/.*NEEDED.*: .\(lib$2\.so.*\).$/\1/p'`])
    LIBS=$eth_hpp_libs
    AC_MSG_RESULT([$$1])
    AS_IF([test "x$$1" = x], [AC_MSG_ERROR([$READELF finds no lib$2 that a program which calls $3 needs: does that readelf work?])])
    AC_DEFINE_UNQUOTED([$1], ["$$1"], [$5])
])
AC_DEFUN([ETH_HPP_READELF], [
    AC_CHECK_TOOL([READELF], [readelf])
    AS_IF([test "x$READELF" = x], [AC_MSG_ERROR([readelf is needed: install binutils])])
])

AC_DEFUN([ETH_HPP_WITH_PMIX], [
    ETH_HPP_ARG_WITH([pmix], [PMIx, which bootstraps ranks under Slurm])
    ETH_HPP_PKG([PMIX], [pmix], [pmix >= 3])
    AS_IF([test $have_pmix = yes], [AC_DEFINE([HAVE_PMIX], [1], [PMIx is there])])
    AM_CONDITIONAL([HAVE_PMIX], [test $have_pmix = yes])
    ETH_HPP_RESULT([pmix], [libpmix-dev], [only one-process runs])
])

AC_DEFUN([ETH_HPP_WITH_UCX], [
    ETH_HPP_ARG_WITH([ucx], [UCX, the transport between CPU ranks])
    ETH_HPP_PKG([UCX], [ucx], [ucx >= 1.10])
    AS_IF([test $have_ucx = yes], [
        AC_DEFINE([HAVE_UCX], [1], [UCX is there])
        ETH_HPP_LIBRARY([ETH_HPP_UCP_LIBRARY], [ucp], [ucp_cleanup], [$UCX_LIBS], [the file of UCX])])
    AM_CONDITIONAL([HAVE_UCX], [test $have_ucx = yes])
    ETH_HPP_RESULT([ucx], [libucx-dev], [no transport between CPU ranks])
])

# Slurm has no pkg-config file. The plugin must match the daemons' major.minor, so its version is read from the header.
AC_DEFUN([ETH_HPP_WITH_SLURM], [
    ETH_HPP_ARG_WITH([slurm], [Slurm's headers, for the SPANK plugin])
    have_slurm=no
    have_spank_prepend=no
    SLURM_CFLAGS=
    AS_IF([test "$with_slurm" != no], [
        AS_CASE([$with_slurm], [/*], [SLURM_CFLAGS="-I$with_slurm/include"])
        eth_hpp_cppflags=$CPPFLAGS
        CPPFLAGS="$CPPFLAGS $SLURM_CFLAGS"
        AS_IF([test "x$SLURM_CFLAGS" = x || test -e "$with_slurm/include/slurm/spank.h"],
            [AC_CHECK_HEADER([slurm/spank.h], [have_slurm=yes], [], [#include <stdint.h>])])
        AC_CHECK_DECL([spank_prepend_task_argv],
            [have_spank_prepend=yes
             AC_DEFINE([HAVE_SPANK_PREPEND_TASK_ARGV], [1], [Slurm 23.11 or later])], [],
            [#include <stdint.h>
             #include <slurm/spank.h>])
        AS_IF([test $have_slurm = yes],
            [AC_COMPUTE_INT([eth_hpp_slurm_number], [SLURM_VERSION_NUMBER >> 8], [#include <slurm/slurm.h>],
                [AC_MSG_ERROR([slurm/slurm.h says no SLURM_VERSION_NUMBER])])])
        CPPFLAGS=$eth_hpp_cppflags
    ])
    AS_CASE([$with_slurm], [/*], [eth_hpp_slurm_path=$with_slurm/bin:$with_slurm/sbin], [eth_hpp_slurm_path=$PATH:/usr/sbin])
    AS_IF([test $have_slurm = yes], [ETH_HPP_CHECK_SLURM_VERSION])
    AC_PATH_PROG([SCANCEL], [scancel], [/usr/bin/scancel], [$eth_hpp_slurm_path])
    AC_SUBST([SLURM_CFLAGS])
    AM_CONDITIONAL([HAVE_SPANK_PREPEND_TASK_ARGV], [test $have_spank_prepend = yes])
    AM_CONDITIONAL([HAVE_SLURM], [test $have_slurm = yes])
    ETH_HPP_RESULT([slurm], [libslurm-dev], [no SPANK plugin])
    AS_IF([test $have_slurm = yes], [summary_slurm="yes, for Slurm $eth_hpp_slurm_version$eth_hpp_slurm_unchecked"])
])

# Slurm refuses a plugin that was built against another release's headers, on every node, so that is found out here. Of
# its programs the daemons tell their version even where Slurm is not configured.
AC_DEFUN([ETH_HPP_CHECK_SLURM_VERSION], [
    eth_hpp_slurm_version=`expr $eth_hpp_slurm_number / 256`.`printf %02d \`expr $eth_hpp_slurm_number % 256\``
    AC_DEFINE_UNQUOTED([ETH_HPP_SLURM_VERSION], ["$eth_hpp_slurm_version"], [the Slurm release that loads the plugin])
    AC_MSG_CHECKING([for the installed Slurm's version])
    eth_hpp_installed_slurm=
    eth_hpp_path=$PATH
    PATH=$eth_hpp_slurm_path
    for eth_hpp_program in srun slurmd slurmctld; do
        AS_IF([test "x$eth_hpp_installed_slurm" = x],
            [eth_hpp_installed_slurm=`($eth_hpp_program -V) 2>/dev/null`])
    done
    PATH=$eth_hpp_path
    eth_hpp_installed_slurm=`AS_ECHO(["$eth_hpp_installed_slurm"]) | sed -n ['s/^slurm[^ ]* \([0-9]*\.[0-9]*\)\..*/\1/p']`
    AC_MSG_RESULT([${eth_hpp_installed_slurm:-not installed}])
    AS_CASE([$eth_hpp_installed_slurm],
        [""], [eth_hpp_slurm_unchecked=" (there is no installed Slurm to compare with)"],
        [$eth_hpp_slurm_version], [eth_hpp_slurm_unchecked=],
        [AC_MSG_ERROR([the headers are those of Slurm $eth_hpp_slurm_version, the installed Slurm is $eth_hpp_installed_slurm, which would refuse the plugin:
  install the headers that came with it (libslurm-dev, slurm-devel), name its folder by --with-slurm=DIR, or
  leave the plugin out by --with-slurm=no])])
])

# A toolkit may have come without cuBLASLt; have_cuda=yes where nvcc links a program with it.
AC_DEFUN([ETH_HPP_CUBLASLT], [
    AC_MSG_CHECKING([whether nvcc links with cuBLASLt])
    AS_ECHO(["#include <cublasLt.h>"]) >conftest.cu
    AS_ECHO(["int main(void) { return cublasLtGetVersion() == 0; }"]) >>conftest.cu
    AS_IF(["$NVCC" -o conftest$EXEEXT conftest.cu -lcublasLt >&AS_MESSAGE_LOG_FD 2>&1], [have_cuda=yes])
    rm -f conftest.cu conftest$EXEEXT
    AC_MSG_RESULT([$have_cuda])
])

AC_DEFUN([ETH_HPP_WITH_CUDA], [
    ETH_HPP_ARG_WITH([cuda], [the CUDA toolkit, for the GPU module])
    have_cuda=no
    AS_IF([test "$with_cuda" != no], [
        AS_CASE([$with_cuda], [/*], [eth_hpp_cuda_path=$with_cuda/bin], [eth_hpp_cuda_path=$PATH:/usr/local/cuda/bin])
        AC_PATH_PROG([NVCC], [nvcc], [], [$eth_hpp_cuda_path])
        AS_IF([test -n "$NVCC"], [ETH_HPP_CUBLASLT])
    ])
    AC_ARG_VAR([CUDA_ARCHITECTURES],
        [compute capabilities to compile for, such as "75 80 90" (default: the first of each generation, whose code the others run)])
    CUDA_ALL_ARCHITECTURES=
    AS_IF([test $have_cuda = yes],
        [for eth_hpp_architecture in `"$NVCC" --list-gpu-arch | sed -n 's/^compute_//p' | sort -un`; do
            AS_IF([test $eth_hpp_architecture -ge 70], [CUDA_ALL_ARCHITECTURES="$CUDA_ALL_ARCHITECTURES $eth_hpp_architecture"])
        done])
    AC_SUBST([CUDA_ALL_ARCHITECTURES])
    AS_IF([test -z "$CUDA_ARCHITECTURES"],
        [eth_hpp_generation=
        for eth_hpp_architecture in $CUDA_ALL_ARCHITECTURES; do
            AS_IF([test "${eth_hpp_architecture%?}" != "$eth_hpp_generation"], [CUDA_ARCHITECTURES="$CUDA_ARCHITECTURES $eth_hpp_architecture"])
            eth_hpp_generation=${eth_hpp_architecture%?}
        done])
    AS_CASE([$CUDA_ARCHITECTURES], [*@<:@!0-9\ @:>@*],
        [AC_MSG_ERROR([CUDA_ARCHITECTURES="$CUDA_ARCHITECTURES" are no compute capabilities: give numbers such as "75 80 90"])])
    AM_CONDITIONAL([HAVE_CUDA], [test $have_cuda = yes])
    ETH_HPP_RESULT([cuda], [the CUDA toolkit with cuBLASLt], [no GPU module])
    AS_IF([test $have_cuda = yes], [CUDA_LIBDIR=`dirname "$NVCC"`/../lib64])
    AC_SUBST([CUDA_LIBDIR])
    AS_IF([test $have_cuda = yes], [summary_cuda=`echo yes, for compute capabilities $CUDA_ARCHITECTURES`])
])

# A C++ compiler is needed only to run the GPU module's kernels without a GPU.
AC_DEFUN([ETH_HPP_CHECK_CXX], [
    AC_LANG_PUSH([C++])
    AC_MSG_CHECKING([for a C++17 compiler])
    eth_hpp_cxxflags=$CXXFLAGS
    CXXFLAGS="$CXXFLAGS -std=c++17"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM([#include <functional>], [std::function<void()> f;])], [have_cxx=yes], [have_cxx=no])
    CXXFLAGS=$eth_hpp_cxxflags
    AC_MSG_RESULT([$have_cxx])
    AC_LANG_POP([C++])
    AM_CONDITIONAL([HAVE_CXX], [test $have_cxx = yes])
])

# oneDNN has no pkg-config file. The kernels also set how many threads the OpenMP runtime gives it.
AC_DEFUN([ETH_HPP_WITH_ONEDNN], [
    ETH_HPP_ARG_WITH([onednn], [oneDNN, for the CPU kernels])
    have_onednn=no
    ONEDNN_CFLAGS=
    ONEDNN_LIBS=
    AS_IF([test "$with_onednn" != no], [
        AS_CASE([$with_onednn], [/*], [
            ONEDNN_CFLAGS="-I$with_onednn/include"
            ONEDNN_LIBS="-L$with_onednn/lib"])
        eth_hpp_cppflags=$CPPFLAGS
        eth_hpp_libs=$LIBS
        CPPFLAGS="$CPPFLAGS $ONEDNN_CFLAGS"
        LIBS="$ONEDNN_LIBS -ldnnl -lgomp $LIBS"
        AS_IF([test "x$ONEDNN_CFLAGS" = x || test -e "$with_onednn/include/oneapi/dnnl/dnnl.h"], [
            AC_MSG_CHECKING([for oneDNN and its OpenMP runtime])
            AC_LINK_IFELSE([AC_LANG_PROGRAM([
                #include <oneapi/dnnl/dnnl.h>
                extern void omp_set_num_threads(int count);], [
                float c;
                omp_set_num_threads(1);
                return dnnl_sgemm('N', 'N', 1, 1, 1, 1, &c, 1, &c, 1, 0, &c, 1) != dnnl_success;])],
                [have_onednn=yes
                 ONEDNN_LIBS="$ONEDNN_LIBS -ldnnl -lgomp"])
            AC_MSG_RESULT([$have_onednn])])
        CPPFLAGS=$eth_hpp_cppflags
        LIBS=$eth_hpp_libs
    ])
    AC_SUBST([ONEDNN_CFLAGS])
    AS_IF([test $have_onednn = yes], [
        AC_DEFINE([HAVE_ONEDNN], [1], [oneDNN is there])
        ETH_HPP_LIBRARY([ETH_HPP_ONEDNN_LIBRARY], [dnnl], [dnnl_sgemm], [$ONEDNN_LIBS], [the file of oneDNN])])
    AM_CONDITIONAL([HAVE_ONEDNN], [test $have_onednn = yes])
    ETH_HPP_RESULT([onednn], [libdnnl-dev], [no CPU kernels: no training without a GPU])
])

AC_DEFUN([ETH_HPP_WITH_CMOCKA], [
    ETH_HPP_ARG_WITH([cmocka], [cmocka, for the unit tests])
    ETH_HPP_PKG([CMOCKA], [cmocka], [cmocka])
    AM_CONDITIONAL([HAVE_CMOCKA], [test $have_cmocka = yes])
    ETH_HPP_RESULT([cmocka], [libcmocka-dev], [make check runs nothing])
])

AC_DEFUN([ETH_HPP_SUMMARY], [
    AC_MSG_NOTICE([
    eth-hpp $PACKAGE_VERSION
        prefix     $prefix
        pmix       $summary_pmix
        ucx        $summary_ucx
        slurm      $summary_slurm
        cuda       $summary_cuda
        onednn     $summary_onednn
        cmocka     $summary_cmocka])
])

# What build_bundle.sh takes of SGLang 0.5.23, which pins torch 2.14.1, to run on the GPU machine's torch 2.11.0 and triton 3.6.
# The kernels are those of sglang-kernel 0.4.5, built for torch 2.11, and not the 0.4.10 that this release pins, which is built for
# torch 2.14 and asks for symbols that 2.11 lacks: what a Llama with EAGLE3 calls there has the same schema in both (README.md).
KERNEL=0.4.5
FLASHINFER=0.7.2
# the compiled prefix cache is built for torch 2.14 (on 2.11 it misreads a tensor's dtype and panics): left out, SGLang takes its
# Python one by itself; the other compiled extensions serve gRPC, images, a benchmark and a server that is not the default
LEAVE_OUT=('sglang/multimodal_gen/*' 'sglang/test/*' 'sglang/benchmark/datasets/*' 'sglang/kernels/jit/benchmark/*' 'tools/*' 'flashinfer/data/csrc/*/*'
  'sglang/srt/mem_cache/rust_tree_core/*.so' 'sglang/srt/rust_extensions/*.so')
# SGLang names these folders to the compiler and stops if they are not there, though what is compiled here takes nothing from them
EMPTY=(flashinfer/data/cutlass/include flashinfer/data/cutlass/tools/util/include flashinfer/data/spdlog/include)
ANY_TOKENIZERS=0

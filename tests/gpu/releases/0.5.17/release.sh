# What build_bundle.sh takes of SGLang 0.5.17, which pins torch 2.11.0, as the GPU machine has it.
KERNEL=0.4.5
FLASHINFER=0.6.15.post1
LEAVE_OUT=('sglang/multimodal_gen/*' 'sglang/test/*' 'sglang/benchmark/datasets/*' 'sglang/kernels/jit/benchmark/*' 'tools/*')
# the GPU machine's own tokenizers (0.23.x) is newer than transformers 5.12.1 asks for, and works
ANY_TOKENIZERS=1

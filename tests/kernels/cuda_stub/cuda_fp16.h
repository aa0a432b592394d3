// In cuda_bf16.h of this folder.

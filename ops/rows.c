/* Skeleton. */
#define zfi_infer_gather_rows zfi_infer_pending
#define zfi_grad_gather_rows zfi_grad_none
#define zfi_cpu_gather_rows zfi_cpu_pending
#define zfi_infer_scatter_rows zfi_infer_pending
#define zfi_grad_scatter_rows zfi_grad_none
#define zfi_cpu_scatter_rows zfi_cpu_pending

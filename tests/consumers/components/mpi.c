/* The component for MPI compiles and links; nothing is run. */
#include <zeroflow.h>

int main(void)
{
    zf_error error = {ZF_OK, ""};
    zf_comm *comm = zf_mpi_comm(NULL, &error);
    zf_comm_free(comm);
    return comm != NULL;
}

// Portable. One step of Sinkhorn: c [HC, HC] over the sums of its columns (DOWN) or of its rows.
template <int HC, bool DOWN>
FN void shares(LOCAL float* c, float eps) {
  float share[HC];
  UNROLL for (int a = 0; a < HC; a++) {
    float total = 0.0f;
    UNROLL for (int b = 0; b < HC; b++) total += DOWN ? c[b * HC + a] : c[a * HC + b];
    share[a] = 1.0f / (total + eps);
  }
  UNROLL for (int i = 0; i < HC * HC; i++) c[i] *= DOWN ? share[i % HC] : share[i / HC];
}

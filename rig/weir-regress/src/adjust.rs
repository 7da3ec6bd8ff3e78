//! Corrections for many rows: with 23 rows at 90 %, two or three intervals exclude zero by chance.

/// Benjamini and Hochberg's q-values, in the order of the input. Among rows with q < 0.1 at most a tenth is expected to be false.
pub fn benjamini_hochberg(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut q = vec![1.0; p.len()];
    let mut least = 1.0_f64;
    for (rank, index) in order.iter().enumerate().rev() {
        least = least.min(p[*index] * p.len() as f64 / (rank + 1) as f64);
        q[*index] = least;
    }
    q
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let q = benjamini_hochberg(&[0.01, 0.04, 0.03, 0.005]);
        let want = [0.02, 0.04, 0.04, 0.02];
        assert!(q.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12), "{q:?}");
        assert_eq!(benjamini_hochberg(&[]), Vec::<f64>::new());
        assert_eq!(benjamini_hochberg(&[0.3]), vec![0.3]);
    }

    #[test]
    fn never_below_p_and_never_above_one() {
        let p: Vec<f64> = (0..50).map(|i| f64::from(i * 37 % 50) / 50.0).collect();
        for (p, q) in p.iter().zip(benjamini_hochberg(&p)) {
            assert!(q >= *p - 1e-15 && q <= 1.0);
        }
    }
}

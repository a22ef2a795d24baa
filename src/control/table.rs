//! Columns that line up.

/// A table: a row of heads and rows of cells, of which all but left-aligned columns are flush right.
pub struct Table {
    rows: Vec<Vec<String>>,
    left: Vec<usize>,
}

impl Table {
    /// A table with these heads.
    pub fn new<S: Into<String>>(heads: impl IntoIterator<Item = S>) -> Self {
        Table { rows: vec![heads.into_iter().map(Into::into).collect()], left: Vec::new() }
    }

    /// The same with this column flush left.
    pub fn left(mut self, column: usize) -> Self {
        self.left.push(column);
        self
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The lines, indented.
    pub fn render(&self, indent: usize) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| self.rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for (c, cell) in row.iter().enumerate() {
                let gap = if c == 0 { "" } else { "  " };
                let width = widths[c];
                line += gap;
                line += &if self.left.contains(&c) {
                    format!("{cell:width$}")
                } else {
                    format!("{cell:>width$}")
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut t = Table::new(["queue", "name"]).left(1);
        t.row(["1", "a"]);
        t.row(["100000", "long name"]);
        assert_eq!(t.render(2), "   queue  name\n       1  a\n  100000  long name\n");
    }
}

//! What documents say is there.

use super::{expect_none, files, root};

#[test]
fn links_between_documents_lead_somewhere() {
    let mut found = Vec::new();
    for (path, text) in files().iter().filter(|(path, _)| path.ends_with(".md")) {
        let directory = root().join(path).parent().unwrap().to_path_buf();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            if !target.is_empty() && !target.contains("://") && !directory.join(target).exists() {
                found.push(format!("{path}: {target}"));
            }
        }
    }
    expect_none("links to nothing", found);
}

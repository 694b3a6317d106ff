//! The file of `--save`. It is written as `FILE.new`, which gets the name when all of it is on the disk.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use zram::Device;

/// It holds what the device holds, and so is its user's alone.
const MODE: u32 = 0o600;

/// Finds out whether the file can be made. An error is one line for the user.
pub fn probe(path: &Path) -> Result<(), String> {
    let new = new_name(path);
    if path.is_dir() {
        return Err(format!("{}: it is a directory", path.display()));
    }
    create(&new).and_then(|_| fs::remove_file(&new)).map_err(|error| format!("{}: {error}", new.display()))
}

/// Saves a device: the file has the old contents, or all of the new ones.
pub fn save(device: &Device, path: &Path) -> Result<(), String> {
    let new = new_name(path);
    let saved = write(device, &new).and_then(|()| rename(&new, path).map_err(|error| error.to_string()));
    saved.map_err(|why| {
        let _ = fs::remove_file(&new);
        format!("{}: {why}", new.display())
    })
}

fn write(device: &Device, new: &Path) -> Result<(), String> {
    let said = |error: io::Error| error.to_string();
    let mut file = BufWriter::with_capacity(1 << 20, create(new).map_err(said)?);
    device.save(&mut file).map_err(|error| error.to_string())?;
    file.flush().and_then(|()| file.get_ref().sync_all()).map_err(said)
}

/// The name is on the disk, too, when this returns.
fn rename(new: &Path, path: &Path) -> io::Result<()> {
    fs::rename(new, path)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

fn create(new: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(new)?;
    // One that was there before may have another mode.
    file.set_permissions(Permissions::from_mode(MODE))?;
    Ok(file)
}

fn new_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_probed_and_saved_for_its_user_alone() {
        let directory = std::env::temp_dir().join(format!("zram-file-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("saved");
        probe(&path).unwrap();
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        assert!(probe(&directory).is_err());
        assert!(probe(Path::new("/nonexistent/saved")).unwrap_err().contains("/nonexistent/saved.new"));
        fs::write(new_name(&path), "left over").unwrap();
        fs::set_permissions(new_name(&path), Permissions::from_mode(0o644)).unwrap();
        let device = Device::new();
        assert!(save(&device, &path).is_err());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        device.set("disksize", "1M").unwrap();
        save(&device, &path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        fs::remove_dir_all(directory).unwrap();
    }
}
